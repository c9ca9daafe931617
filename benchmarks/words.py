"""Words for runs with modelled work: uniform, and from some epoch on with a small set repeated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.cli.zipf import words_of
from millstream.ring.hashing import hash_column, slot_of

SLOTS = 4096
DISTINCT = 4_000
_VOCABULARY = pa.array(words_of(DISTINCT))


def uniform(number: int) -> npt.NDArray[np.int64]:
    """Draw words, all equally likely; as their ranks."""
    return np.random.default_rng(1).integers(0, DISTINCT, number)


def repeated(ranks: npt.NDArray[np.int64], start: int, words: int, parts: int) -> pa.Array:
    """The same words, but from a start on every second one is of a small set.

    The set is spread over the first of so many equal parts of all slots.
    """
    slots = slot_of(hash_column(_VOCABULARY), SLOTS)
    by_slot = np.argsort(slots, kind="stable")
    first = by_slot[slots[by_slot] < SLOTS // parts]
    small = first[np.linspace(0, len(first) - 1, words).astype(int)]
    changed = ranks.copy()
    later = np.arange(start, len(ranks), 2)
    changed[later] = small[np.arange(len(later)) % words]
    return text_of(changed)


def text_of(ranks: npt.NDArray[np.int64]) -> pa.Array:
    """The words of these ranks."""
    return _VOCABULARY.take(pa.array(ranks))


def counts_of(words: pa.Array) -> Mapping[str, int]:
    """How often each word comes: the right answer."""
    return {each["values"]: each["counts"] for each in pc.value_counts(words).to_pylist()}
