"""The replication log (``durability="interval"``): what each backup still lacks. No I/O, no clock.

A primary retains the fragments it has sealed until every backup has them. A delta covers the
epochs (since, through]; values are absolute, so a backup can apply it from any epoch in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, equal_runs, overlap
from millstream.ring.placement import Share
from millstream.ring.ring import NodeId


@dataclass(frozen=True)
class Retained:
    """A sealed fragment that some backup may not have yet."""

    epoch: int
    job: int
    slots: range
    keys: int
    fragment: Any


@dataclass(frozen=True)
class Due:
    """A delta to be replicated: the same for all of its backups."""

    peers: tuple[NodeId, ...]
    slots: range
    since: int
    through: int
    retained: tuple[Retained, ...]

    @property
    def keys(self) -> int:
        """An upper bound of the number of changed keys."""
        return sum(each.keys for each in self.retained)


class ReplicationLog:
    """The fragments that backups may lack, and what each backup has acknowledged."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._retained: list[Retained] = []
        self._acknowledged: dict[NodeId, npt.NDArray[np.int64]] = {}
        # From here on every fragment of the slot is retained.
        self._floor: npt.NDArray[np.int64] = np.full(slots, -1, dtype=np.int64)
        # The newest epoch in the store; later fragments are retained for it. None without a store.
        self.stored: int | None = None

    def begin(self, slots: SlotMask, through: npt.NDArray[np.int64]) -> None:
        """Start to retain fragments of slots that were assigned to this node."""
        self._floor[slots] = np.maximum(through[slots], -1)

    def retain(self, retained: Retained) -> None:
        """Add a fragment that was just sealed."""
        self._retained.append(retained)

    @property
    def keys(self) -> int:
        """The number of keys in the retained fragments."""
        return sum(each.keys for each in self._retained)

    def due(self, shares: Sequence[Share], through: npt.NDArray[np.int64]) -> Iterator[Due]:
        """The deltas that bring the backups of these shares to the epoch of their owner."""
        lagging: dict[tuple[int, int, int, int], list[NodeId]] = {}
        for share in shares:
            for peer in share.copies:
                since = self._since(peer, share.slots)
                reached = through[share.slots.start : share.slots.stop]
                for part in equal_runs(share.slots, since, reached):
                    start = int(since[part.start - share.slots.start])
                    end = int(through[part.start])
                    if start < end:
                        lagging.setdefault((part.start, part.stop, start, end), []).append(peer)
        for (first, stop, start, end), peers in lagging.items():
            slots = range(first, stop)
            fragments = tuple(
                each
                for each in self._retained
                if start < each.epoch <= end and overlap(each.slots, slots)
            )
            yield Due(tuple(peers), slots, start, end, fragments)

    def floor(self, slots: range) -> npt.NDArray[np.int64]:
        """The epoch after which every fragment of these slots is retained."""
        return self._floor[slots.start : slots.stop]

    def changes(self, job: int, slots: range, since: int, through: int) -> list[Retained]:
        """The retained fragments of a job for some slots and epochs (since, through]."""
        return [
            each
            for each in self._retained
            if each.job == job and since < each.epoch <= through and overlap(each.slots, slots)
        ]

    def _since(self, peer: NodeId, slots: range) -> npt.NDArray[np.int64]:
        """The epoch from which on a backup needs, and can be sent, each of these slots."""
        part = slice(slots.start, slots.stop)
        known = self._acknowledged.get(peer)
        floor = self._floor[part]
        return floor.copy() if known is None else np.maximum(floor, known[part])

    def acknowledge(self, peer: NodeId, slots: range, through: int) -> None:
        """Note that a backup has these slots through an epoch."""
        known = self._acknowledged.setdefault(peer, np.full(self._slots, -1, dtype=np.int64))
        part = known[slots.start : slots.stop]
        np.maximum(part, through, out=part)

    def evict(self, shares: Sequence[Share], through: npt.NDArray[np.int64]) -> list[Retained]:
        """Evict the fragments that every backup has.

        The caller frees them one by one: to free all at once would block other threads.
        """
        floor = int(min((through[s.slots.start : s.slots.stop].min() for s in shares), default=-1))
        peers = {peer for share in shares for peer in share.copies}
        for share in shares:
            for peer in share.copies:
                floor = min(floor, int(self._since(peer, share.slots).min()))
        if self.stored is not None:
            floor = min(floor, self.stored)
        evicted = [each for each in self._retained if each.epoch <= floor]
        self._retained = [each for each in self._retained if each.epoch > floor]
        np.maximum(self._floor, floor, out=self._floor)
        for peer in [peer for peer in self._acknowledged if peer not in peers]:
            del self._acknowledged[peer]
        return evicted

    def clear(self) -> None:
        self._retained.clear()
        self._acknowledged.clear()
        self._floor[:] = -1
        self.stored = None if self.stored is None else -1
