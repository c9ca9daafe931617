"""Numbers for keys: tables of panes hold small sorted integers instead of users' keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.keys import encode_keys
from millstream.ring.masks import SlotMask
from millstream.state.values import unify_nulls

Ids = npt.NDArray[np.int64]
_SPARE = 10_000


class KeyIds:
    """The keys of one job on one node, each with a number, its slot, and how many rows name it.

    A number stays until ``tidy`` gives new ones to the keys that are still in use, in the same
    order; ``generation`` is then another.
    """

    def __init__(self) -> None:
        self.generation = object()
        self._index: dict[Any, int] = {}
        self._keys: list[Any] = []
        self._slots = np.zeros(0, np.int32)
        self._rows = np.zeros(0, np.int64)
        self._column: pa.Array | None = None

    def find(self, keys: Sequence[Any], slots: npt.NDArray[np.int32]) -> Ids:
        """The numbers of keys; those that are not known get one."""
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
        capacity = max(1024, 2 * needed)
        for name in ("_slots", "_rows"):
            old = getattr(self, name)
            new = np.zeros(capacity, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def slots(self, ids: Ids) -> npt.NDArray[np.int32]:
        return self._slots[ids]

    def keys(self, ids: Ids) -> list[Any]:
        return list(map(self._keys.__getitem__, ids.tolist()))

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
        """Note that so many more rows name each of these keys; the ids are distinct."""
        self._rows[ids] += number

    def within(self, slots: SlotMask) -> Ids:
        """The keys in use that lie in some slots."""
        size = len(self._keys)
        return np.flatnonzero((self._rows[:size] > 0) & slots[self._slots[:size]])

    def tidy(self) -> Ids | None:
        """Forget keys that no row names, if they are many; gives the new number of each old one.

        Numbers keep their order; −1 stands for a key that is gone.
        """
        size = len(self._keys)
        used = self._rows[:size] > 0
        left = int(used.sum())
        if size - left <= left + _SPARE:
            return None
        mapping = np.where(used, np.cumsum(used) - 1, -1)
        self._keys = list(compress(self._keys, used.tolist()))
        self._index = {key: at for at, key in enumerate(self._keys)}
        self._slots, self._rows = self._slots[:size][used], self._rows[:size][used]
        self._column = None
        self.generation = object()
        return mapping
