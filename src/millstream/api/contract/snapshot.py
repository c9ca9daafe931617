"""Everything about a run: at one moment, as changes of it, and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from millstream.api.contract.overview import (
    BacklogView,
    CheckpointView,
    EpochView,
    GraphView,
    JobView,
    RunView,
    Throughput,
)
from millstream.api.contract.ring import HotKeyView, NodeView, RingView
from millstream.api.contract.terms import Count


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything about a run at one moment.

    ``number`` grows with every snapshot that differs from the one before. ``epochs`` are the newest
    fifty, oldest first.
    """

    number: int
    time: float
    run: RunView
    graph: GraphView
    jobs: list[JobView]
    epochs: list[EpochView]
    throughput: Throughput
    backlog: list[BacklogView]
    checkpoint: CheckpointView | None
    nodes: list[NodeView]
    ring: RingView
    hot_keys: list[HotKeyView]


@dataclass(frozen=True, kw_only=True)
class SnapshotChange:
    """The parts of a snapshot that differ from the one before, by name.

    The first message of a stream has all of them.
    """

    number: int
    time: float
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StreamQuery:
    """Events with a larger number than ``since`` are sent first; by default none."""

    since: Count | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """Time series: ``series`` has a list as long as ``times`` by each name.

    Points are at least a second apart, and the newest hour or so is retained. Values are None
    where there was nothing to measure.
    """

    times: list[float]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, kw_only=True)
class HistoryQuery:
    """Points later than a time."""

    since: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
