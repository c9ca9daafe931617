"""The elements of a workflow's graph, as frozen descriptions.

``workflow.py`` and ``streams.py`` make them, ``plan.py`` sorts them; a running workflow only reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import pyarrow as pa

from millstream.errors import Place
from millstream.flow.functions import ArrowFunction, FrameStep, Function, SqlStep
from millstream.flow.reducers import ReducerForm, StatefulReducer
from millstream.flow.row_reducer import RowReducer
from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.windows import Windowing

Side = Literal["late", "ahead", "untimed"]


@dataclass(frozen=True)
class SourceTiming:
    """The event time options of a source, in microseconds.

    The watermark stays ``lateness`` behind the largest event time. After ``idle`` without data the
    source no longer holds others back. A value that is more than ``max_ahead`` ahead of the clock
    is rejected.
    """

    lateness: int = 0
    idle: int = 30_000_000
    max_ahead: int = 86_400_000_000


@dataclass(frozen=True, eq=False)
class Vertex:
    """One element of the workflow's graph."""

    place: Place
    inputs: tuple[Vertex, ...] = field(default=(), repr=False)


@dataclass(frozen=True, eq=False)
class SourceVertex(Vertex):
    name: str = ""
    source: Source = field(default_factory=Source)
    timing: SourceTiming = field(default_factory=SourceTiming)


@dataclass(frozen=True, eq=False)
class RecordStep(Vertex):
    """``map``, ``flat_map`` or ``filter`` with a Python function per record."""

    kind: str = "map"
    function: Function = field(default=lambda record: record)
    schema: pa.Schema | None = None


@dataclass(frozen=True, eq=False)
class BatchStep(Vertex):
    """A function per Arrow batch."""

    function: Function = field(default=lambda batch: batch)
    schema: pa.Schema | None = None


@dataclass(frozen=True, eq=False)
class SplitVertex(Vertex):
    """A predicate that is called once for each record; its readers are ``BranchVertex``."""

    function: Function = field(default=bool)


@dataclass(frozen=True, eq=False)
class BranchVertex(Vertex):
    """The records of a split for which the predicate holds, or the others."""

    holds: bool = True


@dataclass(frozen=True, eq=False)
class FrameVertex(Vertex):
    """A step that stays in the JVM."""

    step: SqlStep | FrameStep = field(default_factory=lambda: SqlStep(("*",)))


@dataclass(frozen=True, eq=False)
class UnionVertex(Vertex):
    """Several streams as one."""


@dataclass(frozen=True, eq=False)
class NamedVertex(Vertex):
    """A stream referred to by name, possibly before it exists."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class JobVertex(Vertex):
    """One map → combine → reduce step with its keyed state.

    ``lateness`` is that of a job with timers; windows have their own.
    """

    name: str = ""
    map: Function | ArrowFunction | None = None
    combine: Function | None = None
    reducer: ReducerForm = field(default_factory=lambda: StatefulReducer(_nothing))
    key: str | tuple[str, ...] | Function | None = None
    time: str | None = None
    lateness: int | None = None
    ttl: timedelta | None = None
    key_type: pa.DataType | None = None
    output: pa.Schema | None = None
    durable: bool = True
    windowing: Windowing | None = None
    share: bool = True

    @property
    def has_timers(self) -> bool:
        """Whether its keys have timers."""
        return isinstance(self.reducer, StatefulReducer) and self.reducer.on_timer is not None

    @property
    def row_reducer(self) -> RowReducer | None:
        """Its reducer, if that reduces rows."""
        instance = self.reducer.instance if isinstance(self.reducer, StatefulReducer) else None
        return instance if isinstance(instance, RowReducer) else None

    @property
    def reads_event_time(self) -> bool:
        """Whether the event times of its values matter, for windows or timers."""
        return self.windowing is not None or self.has_timers


@dataclass(frozen=True, eq=False)
class FusedVertex(Vertex):
    """A job whose windows another job reduces along with its own; that one is its only input."""

    name: str = ""
    job: JobVertex = field(default_factory=lambda: JobVertex(Place("", 0)))


@dataclass(frozen=True, eq=False)
class SideVertex(Vertex):
    """A side output of a windowed job: ``(key, value, time)`` of values that no window includes."""

    side: Side = "late"

    def is_behind(self, job: Vertex) -> bool:
        """Whether the operator of its job decides which values these are, and not the map."""
        windowing = job.windowing if isinstance(job, JobVertex) else None
        return self.side == "late" and windowing is not None and windowing.is_merging


@dataclass(frozen=True, eq=False)
class SinkVertex(Vertex):
    name: str = ""
    sink: Sink = field(default_factory=Sink)


def _nothing(_key: object, _values: object, _state: object) -> None:
    return None
