"""What a node holds, slot by slot: which slots it owns and since when, and which it backs up.

``through`` is the epoch up to which the state of a slot is complete in memory. It advances by one
epoch at a time, or with a delta or snapshot that leaves no gap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream.checkpoints.epoch_contents import EMPTY
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.wire.feed import Feed, FeedRefusedError

UNKNOWN = -2
"""This node has no copy."""
_FOREIGN = -1


class Holdings:
    """The slots of one node."""

    def __init__(self, node: NodeId, slots: int) -> None:
        self._node = node
        self._slots = slots
        self.placement: Placement | None = None
        self.owned: SlotMask = np.zeros(slots, dtype=bool)
        self.fed: SlotMask = np.zeros(slots, dtype=bool)
        self.through: npt.NDArray[np.int64] = np.full(slots, UNKNOWN, dtype=np.int64)
        # The ring version at which this node became the owner of each slot.
        self._since: npt.NDArray[np.int64] = np.full(slots, _FOREIGN, dtype=np.int64)

    @property
    def version(self) -> int:
        return -1 if self.placement is None else self.placement.version

    @property
    def held(self) -> SlotMask:
        """The slots of which this node has a copy, as owner or as backup."""
        return self.owned | self.fed

    def clear(self) -> None:
        """Drop everything: a new incarnation begins."""
        self.placement = None
        self.owned[:] = self.fed[:] = False
        self.through[:] = UNKNOWN
        self._since[:] = _FOREIGN

    def place(self, placement: Placement, empty: bool, owners_since: int | None = None) -> SlotMask:
        """Apply the placement in force; return the slots that are no longer held.

        While nothing is committed all slots are ``empty``, and so every copy is complete. Owners
        are the same since version ``owners_since``.
        """
        since = placement.version if owners_since is None else owners_since
        before = self.held
        self.owned, self.fed = placement.owned(self._node), placement.fed(self._node)
        self.placement = placement
        self._since[self.owned & (self._since == _FOREIGN)] = since
        self._since[~self.owned] = _FOREIGN
        if empty:
            self.through[self.held] = EMPTY
        released: SlotMask = before & ~self.held
        self.through[released] = UNKNOWN
        return released

    def fence(self, feed: Feed) -> None:
        """Reject a feed for slots that this node does not own, or that are at another epoch."""
        slots = slice(feed.slots.start, feed.slots.stop)
        since = self._since[slots]
        foreign = (since < 0) | (since > feed.ring)
        if len(since) < len(feed.slots):
            raise FeedRefusedError(f"there is no slot {feed.slots.stop - 1}", stale=False)
        if foreign.any():
            slot = feed.slots.start + int(np.flatnonzero(foreign)[0])
            raise FeedRefusedError(
                f"slot {slot} is not owned by node {self._node} under ring {feed.ring}",
                stale=False,
            )
        behind = self.through[slots] != feed.committed.epoch
        if behind.any():
            slot = feed.slots.start + int(np.flatnonzero(behind)[0])
            raise FeedRefusedError(
                f"slot {slot} of node {self._node} is at epoch {int(self.through[slot])}, not at "
                f"{feed.committed.epoch}",
                stale=False,
            )

    def fence_copy(self, slots: range, ring: int) -> None:
        """Reject a copy from a node that this one has replaced as the owner."""
        if self.owned[slots.start : slots.stop].any():
            raise FeedRefusedError(
                f"node {self._node} owns slots of {slots.start} to {slots.stop - 1} itself since "
                f"ring {int(self._since[slots.start : slots.stop].max())}, after ring {ring}",
                stale=True,
            )
