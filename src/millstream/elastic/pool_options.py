"""The options of the pool of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum


class ExecutorSupply(Enum):
    """Whether the cluster manager grants executors."""

    LOCAL = "local"
    """There is one executor; any number of nodes are processes below it."""
    FIXED = "fixed"
    """Executors are replaced when they die, but their number does not change."""
    ELASTIC = "elastic"
    """Executors can be requested and released."""


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What the pool keeps alive, and what it may do for it.

    A node that died is replaced within ``replace_after`` (never, if None) as long as an executor
    has room: ``nodes_per_core`` nodes for each core. If executors are missing for ``grant_within``,
    they are taken as not granted: with ``overcommit`` the nodes are then started on the executors
    that are there. An executor whose nodes left is released after ``release_after``.
    """

    supply: ExecutorSupply
    standby: int = 0
    replace_after: timedelta | None = timedelta(seconds=5)
    nodes_per_core: float = 1.0
    overcommit: bool = False
    grant_within: timedelta = timedelta(seconds=30)
    release_after: timedelta = timedelta(seconds=10)
