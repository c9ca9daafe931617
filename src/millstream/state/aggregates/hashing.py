"""Hashes of values: 64 bits, the same in every process and on every run.

Values that Spark holds equal hash alike: all NaNs, and the two zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from millstream.state.aggregates.exact import decimal_words
from millstream.state.aggregates.kinds import Kind, kind_of
from millstream.state.aggregates.ordering import floats, integers

Hashes = npt.NDArray[np.uint64]


def hash_values(values: pa.Array) -> Hashes:
    """Hash every value; no nulls."""
    kind = kind_of(values.type)
    if kind is Kind.STRING or kind is Kind.BINARY:
        return _hash_bytes(values)
    if kind is Kind.DECIMAL:
        words = decimal_words(values).view(np.uint64)
        return _mix(_mix(words[:, 0]) ^ words[:, 1])
    if kind is Kind.FLOAT:
        # Adding zero turns negative zero into zero.
        return _mix((floats(values) + 0.0).view(np.uint64))
    return _mix(integers(values).astype(np.int64).view(np.uint64))


def _mix(bits: Hashes) -> Hashes:
    # The finaliser of splitmix64: a bijection, so that distinct integers never collide.
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _hash_bytes(values: pa.Array) -> Hashes:
    # The only loop of the package over values, and only over distinct ones.
    coded = values.dictionary_encode()
    texts = coded.dictionary.cast(pa.large_binary()).to_pylist()
    hashes = np.fromiter(map(xxhash.xxh64_intdigest, texts), np.uint64, len(texts))
    codes: npt.NDArray[np.int32] = coded.indices.to_numpy()
    return hashes[codes]
