"""Load: what nodes did in an epoch, smoothed, as policies see it. No I/O, no clock.

Slots carry the cost: a slot's *seconds* are the reduce time that its keys took per epoch. What a
node would cost with other slots can be computed from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.ring.ring import NodeId

CATCHING_UP = 10.0
"""The number of epochs in which nodes should work off a backlog."""

Seconds = npt.NDArray[np.float64]
"""A value for each slot."""
JobFigures = npt.NDArray[np.float32]
"""A value for each slot, of one job; shorter, because there are many jobs and a history."""


@dataclass(frozen=True, kw_only=True)
class HotKey:
    """A key with a large share of a job's tuples; ``key`` is its text."""

    job: str
    key: str
    slot: int
    share: float


class NodeLoad(NamedTuple):
    """The load of one node, smoothed over epochs.

    ``cpu`` is the part of one core that its process used. ``queue`` is how many seconds of feeds
    waited for the node while it was busy, per epoch, and ``waiting`` the most feeds that waited at
    once. ``tuples`` and ``reduce_seconds`` are its own, of the slots that it had in each epoch:
    their quotient is its speed. ``state_bytes`` is estimated from the number of its keys, and the
    bytes of those that were encoded. ``kind`` names the hardware of its host.
    """

    node: NodeId
    cpu: float
    queue: float = 0.0
    waiting: float = 0.0
    tuples: float = 0.0
    reduce_seconds: float = 0.0
    feed_seconds: float = 0.0
    copy_seconds: float = 0.0
    store_seconds: float = 0.0
    state_bytes: int = 0
    memory: int = 0
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class JobLoad:
    """The load of one job, per slot and epoch."""

    seconds: JobFigures
    tuples: JobFigures


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of a run after an epoch.

    ``seconds`` and ``tuples`` are per slot and epoch, over all ``jobs``, by whose names it is
    divided. Tuples are counted as they reach nodes, after the combine. ``waits`` is, for a pair of
    jobs, how long feeds of the first waited while nodes reduced units of the second (seconds per
    epoch). ``epoch_seconds`` is how long an epoch takes, and ``pressure`` is that over the time
    since the epoch before it was admitted, in which its input arrived: above 1 the input grows
    faster than it is processed, whatever CPU the nodes use. Where a source bounds its epochs, what
    they leave shows in the ``backlog`` instead: how many epochs it takes to read what waits, beyond
    the next one. ``time`` is in seconds, of the coordinator's clock.
    """

    epoch: int
    time: float
    nodes: Mapping[NodeId, NodeLoad]
    seconds: Seconds
    tuples: Seconds
    state_bytes: Seconds
    epoch_seconds: float = 0.0
    pressure: float = 1.0
    backlog: float = 0.0
    waits: Mapping[tuple[str, str], float] = field(default_factory=dict)
    hot_keys: tuple[HotKey, ...] = ()
    jobs: Mapping[str, JobLoad] = field(default_factory=dict)

    @property
    def demand(self) -> float:
        """What nodes would have to do to work off the backlog, over what they do."""
        return 1 + self.backlog / CATCHING_UP
