"""The hash of a key and its slot: the same number in Python and in Spark SQL.

The hash equals ``xxhash64(col)`` of Spark SQL (seed 42, read as signed) for canonical columns.
Nulls leave the seed as it is, and the fields of a struct are chained: the hash of one is the seed
of the next. Canonical keys come from :mod:`millstream.ring.keys`.
"""

from __future__ import annotations

import datetime as dt
import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

from millstream.errors import ConfigError
from millstream.ring.key_types import (
    BINARY,
    BOOL,
    DATE,
    FLOAT64,
    INSTANT,
    INT64,
    LOCAL,
    NULL,
    STRING,
    KeyTypeError,
    canonical_type,
)
from millstream.ring.keys import canonical_key
from millstream.times import EPOCH, LOCAL_EPOCH, MICROSECOND

_Words: TypeAlias = npt.NDArray[np.uint64]
_Positions: TypeAlias = npt.NDArray[np.int64]

_SEED = 42
_INT32 = pa.int32()

# Below this many rows the C function, called row by row, beats numpy's cost per call.
_VECTOR_ROWS = 2_000

# From this many bytes on, XXH64 runs in four lanes, for which numpy is no faster than C.
_SHORT = 32

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

# Columns are hashed by this many rows, so that malloc reuses the temporaries: measured with 50,000
# strings, no page faults instead of some 400.
_CHUNK = 8_192


def hash_column(array: pa.Array) -> npt.NDArray[np.int64]:
    """Hash each key of a canonical column as Spark SQL does."""
    out = np.empty(len(array), np.uint64)
    seeds = np.full(min(len(array), _CHUNK), _SEED, np.uint64)
    for first in range(0, len(array), _CHUNK):
        part = array.slice(first, _CHUNK)
        out[first : first + _CHUNK] = _hash(part, seeds[: len(part)])
    if len(array) == 0:
        _hash(array, seeds)  # an empty column of a wrong type is an error too
    return out.view(np.int64)


def hash_key(key: object, type: pa.DataType) -> int:
    """Hash one key, made canonical for the given type, as :func:`hash_column` would."""
    target = canonical_type(type)
    unsigned = _hash_one(canonical_key(key, target), target, _SEED)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def slot_of_key(key: object, type: pa.DataType | None, slots: int) -> int | None:
    """The slot of a key among keys of a type; None if no key of that type can equal it."""
    if type is None or (type == NULL and key is not None):
        return None
    return hash_key(key, type) % slots


def slot_of(hashes: npt.NDArray[np.int64], slots: int) -> npt.NDArray[np.int32]:
    """Return the slot of each hash: ``pmod(hash, slots)``."""
    if not 1 <= slots < 2**31:
        raise ConfigError(f"slots must be between 1 and 2**31 - 1, got {slots}")
    if slots & (slots - 1) == 0:  # a power of two: the low bits, also of a negative number
        return (hashes & (slots - 1)).astype(np.int32)
    return np.mod(hashes, slots).astype(np.int32)


def _hash(array: pa.Array, seeds: _Words) -> _Words:
    if array.type == NULL:
        return seeds
    if pa.types.is_struct(array.type):
        # Flattened children carry the parent's nulls, so a null struct leaves the seed too.
        for child in array.flatten():
            seeds = _hash(child, seeds)
        return seeds
    hashes = _hash_flat(array, seeds)
    if array.null_count:
        return np.where(array.is_null().to_numpy(zero_copy_only=False), seeds, hashes)
    return hashes


def _hash_flat(array: pa.Array, seeds: _Words) -> _Words:
    """Hash a column that is no struct; the hashes of null rows are meaningless."""
    type = array.type
    if type in (STRING, BINARY):
        return _hash_bytes(array, seeds)
    if type == FLOAT64:
        values = array.fill_null(0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        return _hash_words8(values.view(np.uint64), seeds)
    if type in (INT64, INSTANT, LOCAL):
        return _hash_words8(array.view(INT64).fill_null(0).to_numpy().view(np.uint64), seeds)
    if type == DATE:
        days = array.view(_INT32).fill_null(0).to_numpy()
        return _hash_words4(days.view(np.uint32).astype(np.uint64), seeds)
    if type == BOOL:
        flags = array.fill_null(False).to_numpy(zero_copy_only=False)
        return _hash_words4(flags.astype(np.uint64), seeds)
    raise KeyTypeError("column", f"a canonical column ({canonical_type(type)})", str(type))


def _hash_bytes(array: pa.Array, seeds: _Words) -> _Words:
    if len(array) < _VECTOR_ROWS:
        return _hash_each(array, seeds)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, array.offset * 4)
    lengths = np.diff(offsets).astype(np.int64)
    long = np.flatnonzero(lengths >= _SHORT)
    if len(long) > len(array) // 8:
        return _hash_each(array, seeds)
    first, last = int(offsets[0]), int(offsets[-1])
    # Words are read at any byte, also near the end, so pad it. Without data there is no buffer.
    data = np.zeros(last - first + 8, np.uint8)
    if first < last:
        data[:-8] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    starts = offsets[:-1].astype(np.int64) - first
    lengths[long] = 0  # their hashes are replaced below
    hashes = _hash_short(data, starts, lengths, seeds)
    if len(long):
        hashes[long] = _hash_each(array.take(pa.array(long)), seeds[long])
    return hashes


def _hash_each(array: pa.Array, seeds: _Words) -> _Words:
    values = array.view(BINARY).fill_null(b"").to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(xxh64_intdigest, values, seeds.tolist()), np.uint64, len(array))


def _hash_one(key: object, type: pa.DataType, seed: int) -> int:
    """Hash one canonical key, as an unsigned number."""
    match key:
        case None:
            return seed
        case tuple():
            for part, field in zip(key, type, strict=True):
                seed = _hash_one(part, field.type, seed)
            return seed
        case str():
            data = key.encode()
        case bytes():
            data = key
        case bool():  # before int, which it also is
            data = struct.pack("<i", key)
        case int():
            data = struct.pack("<q", key)
        case float():
            data = struct.pack("<d", key)
        case dt.datetime():  # before date, which it also is
            epoch = LOCAL_EPOCH if key.tzinfo is None else EPOCH
            data = struct.pack("<q", (key - epoch) // MICROSECOND)
        case dt.date():
            data = struct.pack("<i", (key - LOCAL_EPOCH.date()).days)
        case _:
            raise AssertionError(f"not a canonical key: {key!r}")
    return xxh64_intdigest(data, seed)


# XXH64 over many short inputs at once. Arithmetic on uint64 arrays wraps, as XXH64 wants.


def _hash_words8(words: _Words, seeds: _Words) -> _Words:
    """Hash one 8-byte word a row."""
    return _avalanche(_mix8(seeds + (_P5 + np.uint64(8)), words.copy()))


def _hash_words4(words: _Words, seeds: _Words) -> _Words:
    """Hash one 4-byte word a row, given zero-extended."""
    return _avalanche(_mix4(seeds + (_P5 + np.uint64(4)), words.copy()))


def _hash_short(
    data: npt.NDArray[np.uint8], starts: _Positions, lengths: _Positions, seeds: _Words
) -> _Words:
    """Hash ``data[start : start + length]`` of each row; lengths are below 32, data is padded."""
    # A view with a stride of one byte has a word at every byte.
    words8 = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    words4 = np.ndarray((len(data) - 7,), "<u4", data, 0, (1,))
    state = seeds + _P5
    state += lengths.astype(np.uint64)
    shortest, longest = int(lengths.min()), int(lengths.max())
    for end in range(8, longest + 1, 8):
        if shortest >= end:
            state = _mix8(state, words8[starts + (end - 8)])
        else:
            some = np.flatnonzero(lengths >= end)
            state[some] = _mix8(state[some], words8[starts[some] + (end - 8)])
    some = np.flatnonzero(lengths & 4)
    at = starts[some] + (lengths[some] & ~7)
    state[some] = _mix4(state[some], words4[at].astype(np.uint64))
    tails, left = starts + (lengths & ~3), lengths & 3
    for index in range(int(left.max())):
        some = np.flatnonzero(left > index)
        state[some] = _mix1(state[some], data[tails[some] + index].astype(np.uint64))
    return _avalanche(state)


# The mixers work in place on ``words``, and the last step on ``state``: callers pass fresh arrays.


def _mix8(state: _Words, words: _Words) -> _Words:
    words *= _P2
    _rotate(words, 31)
    words *= _P1
    words ^= state
    _rotate(words, 27)
    words *= _P1
    words += _P4
    return words


def _mix4(state: _Words, words: _Words) -> _Words:
    words *= _P1
    words ^= state
    _rotate(words, 23)
    words *= _P2
    words += _P3
    return words


def _mix1(state: _Words, words: _Words) -> _Words:
    words *= _P5
    words ^= state
    _rotate(words, 11)
    words *= _P1
    return words


def _rotate(words: _Words, bits: int) -> None:
    low = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= low


def _avalanche(state: _Words) -> _Words:
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    state ^= state >> np.uint64(32)
    return state
