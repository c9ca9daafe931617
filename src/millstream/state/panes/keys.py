"""Numbers for keys: tables of panes hold small sorted integers instead of users' keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.keys import encode_keys
from millstream.ring.masks import SlotCounts, SlotMask
from millstream.ring.strides import strides
from millstream.state.values import unify_nulls

Ids = npt.NDArray[np.int64]
_SPARE = 10_000
_LEAST = 1_024


class KeyIds:
    """The keys of one job on one node, each with a number, its slot, and its number of rows.

    The number of a key never changes. Numbers are only added, and keys are only visible once
    ``count`` is called, so readers do not see the keys that ``find`` adds concurrently.
    ``compacted`` returns a new object in which the keys in use have new numbers; that is another
    ``generation``.
    """

    def __init__(self) -> None:
        self.generation = object()
        self._index: dict[Any, int] = {}
        self._keys: list[Any] = []
        self._slots = np.zeros(0, np.int32)
        self._rows = np.zeros(0, np.int64)
        self._column: pa.Array | None = None

    def find(self, keys: Sequence[Any], slots: npt.NDArray[np.int32]) -> Ids:
        """The numbers of keys; unknown keys get one."""
        index, known = self._index, self._keys
        ids = np.empty(len(keys), np.int64)
        for at, key in enumerate(keys):
            found = index.get(key)
            if found is None:
                found = index[key] = len(known)
                known.append(key)
                if found >= len(self._slots):
                    self._grow(found + 1)
                self._slots[found] = slots[at]
            ids[at] = found
        return ids

    def known(self, key: Any) -> int | None:
        """The number of a key, if it has one."""
        return self._index.get(key)

    def _grow(self, needed: int) -> None:
        capacity = max(_LEAST, 2 * needed)
        for name in ("_slots", "_rows"):
            old = getattr(self, name)
            new = np.zeros(capacity, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def slots(self, ids: Ids) -> npt.NDArray[np.int32]:
        return self._slots[ids]

    def keys(self, ids: Ids) -> list[Any]:
        keys: list[Any] = []
        for at in strides(len(ids)):
            keys += map(self._keys.__getitem__, ids[at].tolist())
        return keys

    def column(self, ids: Ids) -> pa.Array:
        """Keys as a column."""
        encoded = 0 if self._column is None else len(self._column)
        if encoded < len(self._keys):
            fresh = encode_keys(self._keys[encoded:])
            if self._column is not None:
                kind = unify_nulls((self._column.type, fresh.type))
                assert kind is not None  # the keys of a job are of one type
                fresh = pa.concat_arrays([self._column.cast(kind), fresh.cast(kind)])
            self._column = fresh
        assert self._column is not None
        return self._column.take(pa.array(ids))

    def count(self, ids: Ids, number: int) -> None:
        """Add to the number of rows of each of these keys; the ids are distinct."""
        self._rows[ids] += number

    def within(self, slots: SlotMask) -> Ids:
        """The keys in use that lie in some slots."""
        # The slot of a key is set before its number of rows, and so is read after it.
        ids = np.flatnonzero(self._rows > 0)
        return ids[slots[self._slots[ids]]]

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in use in each of some slots, in slot order."""
        return np.bincount(self._slots[self.within(slots)], minlength=len(slots))[slots]

    def compacted(self) -> tuple[KeyIds, Ids] | None:
        """The keys with rows only, if the others are many; and the new number of each key.

        Numbers keep their order; −1 stands for a removed key.
        """
        size = len(self._keys)
        used = self._rows[:size] > 0
        left = int(used.sum())
        if size - left <= left + _SPARE:
            return None
        new = KeyIds()
        new._keys = list(compress(self._keys, used.tolist()))
        new._index = {key: at for at, key in enumerate(new._keys)}
        new._slots, new._rows = self._slots[:size][used], self._rows[:size][used]
        return new, np.where(used, np.cumsum(used) - 1, -1)
