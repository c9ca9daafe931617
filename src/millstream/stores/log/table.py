"""The large, immutable part of the index: columns sorted by the hash of the key.

A lookup costs the same at a thousand and at a million keys: a directory of the hashes' first bits
narrows a key down to a few rows. The columns are what is flushed and loaded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.stores.log.format import Kind, record_size

U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

ROW = np.dtype(
    [
        ("stamp", "<u8"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("segment", "<u4"),
        ("kind", "<u4"),
    ]
)


class Row(NamedTuple):
    """Where the newest record of a key is."""

    stamp: int
    offset: int
    length: int
    segment: int
    kind: int


class Table:
    """Rows sorted by hash, one for each key; the key is empty if it is unreadable."""

    def __init__(self, hashes: U64, rows: Rows, keys: pa.LargeBinaryArray) -> None:
        self.hashes, self.rows, self.keys = hashes, rows, keys
        self._hash_at = hashes.data
        bits = max(1, len(hashes).bit_length() - 3)
        self._shift = 64 - bits
        firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(self._shift)
        starts = np.searchsorted(hashes, firsts).astype(np.uint64)
        self._starts = np.append(starts, np.uint64(len(hashes))).data
        _, offsets, data = keys.buffers()
        first = keys.offset
        self.key_offsets: npt.NDArray[np.int64] = (
            np.frombuffer(offsets, np.int64)[first : first + len(keys) + 1]
            if offsets is not None and len(keys)
            else np.zeros(1, np.int64)
        )
        self._key_offset_at = self.key_offsets.data
        self._key_data = memoryview(data) if data is not None else memoryview(b"")

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def empty(cls) -> Table:
        return cls(np.empty(0, np.uint64), np.empty(0, ROW), pa.array([], pa.large_binary()))

    def key_at(self, at: int) -> bytes:
        """The key of a row."""
        offsets = self._key_offset_at
        return bytes(self._key_data[offsets[at] : offsets[at + 1]])

    def key_bytes(self) -> bytes:
        """All keys, concatenated."""
        return bytes(self._key_data[int(self.key_offsets[0]) : int(self.key_offsets[-1])])

    def position(self, key: bytes, digest: int) -> int | None:
        """The position of a key's row."""
        bucket = digest >> self._shift
        starts, hash_at = self._starts, self._hash_at
        end = starts[bucket + 1]
        at = bisect_left(hash_at, digest, starts[bucket], end)
        while at < end and hash_at[at] == digest:
            known = self.key_at(at)
            if known == key or not known or not key:
                return at
            at += 1
        return None

    def find(self, key: bytes, digest: int) -> Row | None:
        """The row of a key."""
        at = self.position(key, digest)
        return None if at is None else Row._make(self.rows[at].item())

    def find_all(self, keys: Sequence[bytes], digests: Sequence[int]) -> list[Row | None]:
        """The rows of several keys."""
        places = list(map(self.position, keys, digests))
        there = [at for at in places if at is not None]
        rows = iter(self.rows.take(there).tolist() if there else ())
        return [None if at is None else Row._make(next(rows)) for at in places]

    def matching(self, prefix: bytes) -> Iterator[bytes]:
        """The keys that begin with a prefix and have a value."""
        chosen: npt.NDArray[np.bool_] = self.rows["kind"] == Kind.VALUE
        chosen &= np.diff(self.key_offsets) > 0
        keys = self.keys
        if prefix:
            begins = pc.starts_with(keys, pattern=prefix)
            chosen &= begins.to_numpy(zero_copy_only=False)
        return iter(keys.filter(pa.array(chosen)).to_pylist())

    def sizes(self) -> U64:
        """How many bytes the records of the rows take."""
        around = np.uint64(record_size(0, 0))
        sizes: U64 = self.rows["length"] + np.diff(self.key_offsets).astype(np.uint64) + around
        return sizes

    def filter(self, chosen: npt.NDArray[np.bool_]) -> Table:
        """Only some of the rows."""
        if chosen.all():
            return self
        return Table(self.hashes[chosen], self.rows[chosen], self.keys.filter(pa.array(chosen)))

    def merged(
        self, hashes: U64, rows: Rows, keys: pa.LargeBinaryArray
    ) -> tuple[Table, npt.NDArray[np.int64]]:
        """This with newer rows in it, each for another key; and which rows were replaced."""
        order = np.argsort(hashes, kind="stable")
        # take, here and elsewhere: an index in brackets costs fifty times as much for such rows.
        hashes, rows = hashes.take(order), rows.take(order)
        names = keys.take(pa.array(order))
        old = self._positions(hashes, names)
        replaces = old >= 0
        if replaces.all() and not self._hides(old):
            changed = self.rows.copy()
            _words(changed)[old] = _words(rows)
            return Table(self.hashes, changed, self.keys), old
        replaced = np.zeros(len(self), np.bool_)
        replaced[old[replaces]] = True
        unchanged = ~replaced
        into = np.searchsorted(self.hashes[unchanged], hashes) + np.arange(len(hashes))
        total = int(unchanged.sum()) + len(hashes)
        is_new = np.zeros(total, np.bool_)
        is_new[into] = True
        all_hashes: U64 = np.empty(total, np.uint64)
        all_rows: Rows = np.empty(total, ROW)
        all_hashes[is_new], all_hashes[~is_new] = hashes, self.hashes[unchanged]
        all_rows[is_new], all_rows[~is_new] = rows, self.rows[unchanged]
        source = np.empty(total, np.int64)
        source[is_new] = len(self) + np.arange(len(hashes))
        source[~is_new] = np.flatnonzero(unchanged)
        both = pa.concat_arrays([_plain(self.keys), names])
        return Table(all_hashes, all_rows, both.take(pa.array(source))), old[replaces]

    def _hides(self, positions: npt.NDArray[np.int64]) -> bool:
        """Whether a row with an unreadable key is among some rows."""
        return bool((np.diff(self.key_offsets)[positions] == 0).any())

    def _positions(self, hashes: U64, keys: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
        """The row of each key, or -1."""
        none: npt.NDArray[np.int64] = np.full(len(hashes), -1, np.int64)
        if not len(self):
            return none
        at = np.searchsorted(self.hashes, hashes)
        at[at == len(self)] = 0
        hit = np.flatnonzero(self.hashes[at] == hashes)
        same: Any = pc.equal(self.keys.take(pa.array(at[hit])), keys.take(pa.array(hit)))
        equal = same.to_numpy(zero_copy_only=False)
        none[hit[equal]] = at[hit[equal]]
        # Two keys of one hash: correct, though it never happens in practice.
        for other in hit[~equal].tolist():
            found = self.position(keys[other].as_py(), int(hashes[other]))
            none[other] = -1 if found is None else found
        return none


def _words(rows: Rows) -> U64:
    return rows.view(np.uint64).reshape(len(rows), ROW.itemsize // 8)


def _plain(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    chunked = pa.chunked_array([array])
    return chunked.combine_chunks() if len(array) else array
