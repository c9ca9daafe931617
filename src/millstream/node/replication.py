"""Background checkpoints to peers (``durability="interval"``): what each backup still lacks.

A primary keeps the fragments it has sealed until every backup has them. A delta covers the
epochs (since, through]; values are absolute, so a backup may take it from any epoch in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask
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
    """A delta to be made: the same for all of its backups."""

    peers: tuple[NodeId, ...]
    slots: range
    since: int
    through: int
    retained: tuple[Retained, ...]

    @property
    def keys(self) -> int:
        """About how many keys have changed, at most."""
        return sum(kept.keys for kept in self.retained)


class ReplicationLog:
    """The fragments that backups may lack, and how far each backup was brought."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._retained: list[Retained] = []
        self._acknowledged: dict[NodeId, npt.NDArray[np.int64]] = {}
        # From here on every fragment of the slot is retained.
        self._floor: npt.NDArray[np.int64] = np.full(slots, -1, dtype=np.int64)
        # What the store has for good; later fragments are kept for it. None without a store.
        self.stored: int | None = None

    def begin(self, slots: SlotMask, through: npt.NDArray[np.int64]) -> None:
        """Start to retain for slots that this node has come to own."""
        self._floor[slots] = np.maximum(through[slots], -1)

    def retain(self, retained: Retained) -> None:
        """Keep a fragment that was just sealed."""
        self._retained.append(retained)

    @property
    def keys(self) -> int:
        """How many keys are in the fragments that are kept."""
        return sum(kept.keys for kept in self._retained)

    def due(self, shares: Sequence[Share], through: npt.NDArray[np.int64]) -> Iterator[Due]:
        """The deltas that bring the backups of these shares to where the owner is."""
        found: dict[tuple[int, int, int, int], list[NodeId]] = {}
        for share in shares:
            for peer in share.copies:
                since = self._since(peer, share.slots)
                for part in _even_runs(share.slots, since, through):
                    start = int(since[part.start - share.slots.start])
                    end = int(through[part.start])
                    if start < end:
                        found.setdefault((part.start, part.stop, start, end), []).append(peer)
        for (first, stop, start, end), peers in found.items():
            slots = range(first, stop)
            fragments = tuple(
                kept
                for kept in self._retained
                if start < kept.epoch <= end and _overlap(kept.slots, slots)
            )
            yield Due(tuple(peers), slots, start, end, fragments)

    def floor(self, slots: range) -> npt.NDArray[np.int64]:
        """After which epoch every fragment of these slots is retained."""
        return self._floor[slots.start : slots.stop]

    def changes(self, job: int, slots: range, since: int, through: int) -> list[Retained]:
        """The retained fragments of a job for some slots and epochs (since, through]."""
        return [
            kept
            for kept in self._retained
            if kept.job == job and since < kept.epoch <= through and _overlap(kept.slots, slots)
        ]

    def _since(self, peer: NodeId, slots: range) -> npt.NDArray[np.int64]:
        """From which epoch on a backup needs, and can be given, each of these slots."""
        part = slice(slots.start, slots.stop)
        known = self._acknowledged.get(peer)
        floor = self._floor[part]
        return floor.copy() if known is None else np.maximum(floor, known[part])

    def acknowledge(self, peer: NodeId, slots: range, through: int) -> None:
        """A backup has these slots through an epoch."""
        known = self._acknowledged.setdefault(peer, np.full(self._slots, -1, dtype=np.int64))
        part = known[slots.start : slots.stop]
        np.maximum(part, through, out=part)

    def evict(self, shares: Sequence[Share], through: npt.NDArray[np.int64]) -> list[Retained]:
        """Give up the fragments that every backup has.

        The caller lets go of them, one by one: with all at once, other threads would have to wait.
        """
        kept = int(min((through[s.slots.start : s.slots.stop].min() for s in shares), default=-1))
        peers = {peer for share in shares for peer in share.copies}
        for share in shares:
            for peer in share.copies:
                kept = min(kept, int(self._since(peer, share.slots).min()))
        if self.stored is not None:
            kept = min(kept, self.stored)
        gone = [retained for retained in self._retained if retained.epoch <= kept]
        self._retained = [retained for retained in self._retained if retained.epoch > kept]
        np.maximum(self._floor, kept, out=self._floor)
        for peer in [peer for peer in self._acknowledged if peer not in peers]:
            del self._acknowledged[peer]
        return gone

    def clear(self) -> None:
        self._retained.clear()
        self._acknowledged.clear()
        self._floor[:] = -1
        self.stored = None if self.stored is None else -1


def _even_runs(
    slots: range, since: npt.NDArray[np.int64], through: npt.NDArray[np.int64]
) -> Iterator[range]:
    """Cut slots where either of two values changes."""
    reached = through[slots.start : slots.stop]
    cuts = np.flatnonzero((np.diff(since) != 0) | (np.diff(reached) != 0)) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(slots)]):
        yield range(slots.start + start, slots.start + stop)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
