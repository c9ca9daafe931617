"""A look-up of keys: whom to ask for which, until all answers are of one epoch. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.key_types import NULL
from millstream.ring.keys import canonical_type, encode_keys
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.pickling import loads
from millstream.wire.commit import Commit
from millstream.wire.state_reads import FoundStates, GetStates

_KEYS_AT_ONCE = 1_000  # read in a few milliseconds, in which the node does nothing else
_UNREAD = -2


@dataclass(frozen=True)
class States:
    """The states of keys at a committed ``epoch`` (−1 before the first); None for unknown keys."""

    epoch: int
    values: list[Any]


class Lookup:
    """Keys whose states are looked up, until all of them are of one epoch."""

    def __init__(self, job: int, keys: Sequence[object], kind: pa.DataType, slots: int) -> None:
        self._job = job
        target = canonical_type(kind)
        self._keys = list(keys)
        # If only None was seen so far, no other key has a state.
        self._asked = [at for at, key in enumerate(keys) if target != NULL or key is None]
        some = [self._keys[at] for at in self._asked]
        self._slots = slot_of(hash_column(encode_keys(some, target)), slots)
        self._epochs = np.full(len(some), _UNREAD)
        self.values: list[Any] = [None] * len(keys)
        self.epoch = _UNREAD

    @property
    def is_empty(self) -> bool:
        """Whether no node can have any of the keys."""
        return not self._asked

    @property
    def is_done(self) -> bool:
        """Whether every key was read, at the newest epoch that any was read at."""
        return bool((self._epochs == self.epoch).all()) and self.epoch != _UNREAD

    def requests(
        self, placement: Placement, committed: Commit
    ) -> list[tuple[NodeId, GetStates, npt.NDArray[np.int64]]]:
        """What to ask the owners of keys that were not read, or at an older epoch than others."""
        missing = np.flatnonzero((self._epochs != self.epoch) | (self.epoch == _UNREAD))
        owners = placement.ring.table[self._slots[missing]]
        found = []
        for owner in np.unique(owners).tolist():
            mine = missing[owners == owner]
            for start in range(0, len(mine), _KEYS_AT_ONCE):
                part = mine[start : start + _KEYS_AT_ONCE]
                keys = tuple([self._keys[self._asked[at]] for at in part.tolist()])
                slots = tuple(self._slots[part].tolist())
                request = GetStates(self._job, keys, slots, placement.version, committed)
                found.append((placement.ring.nodes[owner], request, part))
        return found

    def found(self, which: npt.NDArray[np.int64], answer: FoundStates) -> None:
        """Take an answer; one that is older than others is asked for again."""
        self.epoch = max(self.epoch, answer.epoch)
        self._epochs[which] = answer.epoch
        for at, value in zip(which.tolist(), loads(answer.values), strict=True):
            self.values[self._asked[at]] = value
