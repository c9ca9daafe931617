"""Copies of state on their way between nodes: units, deltas and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.commit import Commit
from millstream.wire.receipts import Receipt
from millstream.wire.request import Request


@dataclass(frozen=True)
class ReplicateUnit(Request[None]):
    """What a primary froze, for a backup."""

    incarnation: int
    ring: int
    source: NodeId
    committed: Commit
    receipt: Receipt
    delta: pa.Buffer


@dataclass(frozen=True)
class ResendUnits(Request[None]):
    """Tells a primary to replicate the units of an epoch and try to a backup again."""

    backup: NodeId
    epoch: int
    try_: int


@dataclass(frozen=True)
class ReplicateDelta(Request[int]):
    """The changes of the epochs (since, through] to a range of slots, of every job.

    The backup answers with the epoch up to which its copies of all these slots are complete.
    """

    incarnation: int
    ring: int
    source: NodeId
    committed: Commit
    slots: range
    since: int
    through: int
    parts: tuple[tuple[int, bytes], ...]
    key_types: Mapping[int, pa.DataType]

    @property
    def size(self) -> int:
        """The bytes of its parts."""
        return sum(len(data) for _, data in self.parts)


@dataclass(frozen=True)
class ReplicateNow(Request[None]):
    """Tells a primary to replicate deltas without waiting for the interval: logs grow too large."""


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a range of slots through an epoch, of every job."""

    incarnation: int
    slots: range
    through: int
    parts: tuple[tuple[int, bytes], ...]
    key_types: Mapping[int, pa.DataType]

    @property
    def size(self) -> int:
        """The bytes of its parts."""
        return sum(len(data) for _, data in self.parts)


@dataclass(frozen=True)
class InstallSnapshot(Request[None]):
    """A snapshot for a node that backs up its slots under a ring version."""

    snapshot: Snapshot
    ring: int


@dataclass(frozen=True)
class CopySlots(Request[tuple[range, ...]]):
    """Tells a node to copy slots to another one, as of an epoch or later.

    The donor copies for about so many seconds, or until a feed begins, and answers with the slots
    that remain.
    """

    incarnation: int
    to: NodeId
    slots: tuple[range, ...]
    committed: Commit
    seconds: float


class SlotsNotHeldError(MillstreamError):
    """A node was asked for slots that it does not hold, or not up to the epoch asked for."""
