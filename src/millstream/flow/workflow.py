"""Workflows and streams: what users write.

Everything here is a frozen description; nothing runs while a workflow is built, and every
mistake that can be seen without data is reported with the user's file and line. ``plan.py``
checks the whole and puts it in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from millstream.errors import ConfigError, Place, WorkflowError
from millstream.flow import hints
from millstream.flow.functions import (
    ArrowFunction,
    Form,
    FrameStep,
    Function,
    SqlStep,
    caller,
    check_arguments,
    check_callable,
    check_picklable,
    name_of,
    place_of,
)
from millstream.flow.reducers import ArrowReducer, Reducer, StatefulReducer, reducer_of
from millstream.flow.sinks import Sink
from millstream.flow.sources import Source, dataframe_source
from millstream.flow.windows import Windowing, as_windows, micros
from millstream.state.values import shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Declared: TypeAlias = "Mapping[str, object] | pa.Schema"
Side = Literal["late", "ahead", "untimed"]


class _ProcessingTime:
    """The mark that values are placed in windows by the time at which they are read."""

    def __repr__(self) -> str:
        return "ms.processing_time"


processing_time: Final = _ProcessingTime()
"""For ``time=``: values count at the time at which their epoch was admitted."""


@dataclass(frozen=True)
class SourceTiming:
    """How event time goes on in a source, in microseconds.

    The watermark stays ``lateness`` behind the largest event time. After ``idle`` without data the
    source no longer holds others back. A value that is more than ``max_ahead`` ahead of what was
    to be expected is not believed.
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
    """One map → combine → reduce step with its keyed state."""

    name: str = ""
    map: Function | ArrowFunction | None = None
    combine: Function | None = None
    reducer: Reducer = field(default_factory=lambda: StatefulReducer(_nothing))
    key: str | tuple[str, ...] | Function | None = None
    time: str | None = None
    ttl: timedelta | None = None
    key_type: pa.DataType | None = None
    output: pa.Schema | None = None
    durable: bool = True
    windowing: Windowing | None = None


@dataclass(frozen=True, eq=False)
class SideVertex(Vertex):
    """The values that a windowed job could not take, as a stream of ``(key, value, time)``."""

    side: Side = "late"


@dataclass(frozen=True, eq=False)
class SinkVertex(Vertex):
    name: str = ""
    sink: Sink = field(default_factory=Sink)


def _nothing(_key: object, _values: object, _state: object) -> None:
    return None


class Stream:
    """A stream of records; every step returns a new one."""

    def __init__(self, workflow: Workflow, vertex: Vertex) -> None:
        self._workflow = workflow
        self._vertex = vertex

    def map(self, function: Form, *, output: Declared | None = None) -> Stream:
        """Turn each record (or batch, or frame) into one other."""
        return self._step("map", function, output)

    def flat_map(self, function: Form, *, output: Declared | None = None) -> Stream:
        """Turn each record into none, one or several others."""
        return self._step("flat_map", function, output)

    def filter(self, predicate: Form) -> Stream:
        """Keep the records for which the predicate holds (``ms.sql(where=...)`` in the JVM)."""
        return self._step("filter", predicate, None)

    def key_by(self, key: str | tuple[str, ...] | Function) -> KeyedStream:
        """Choose the key: a column, several columns, or a function of the record."""
        _check_key(key, caller())
        return KeyedStream(self, key)

    def union(self, *others: Stream) -> Stream:
        """Read several streams as one."""
        place = caller()
        for other in others:
            if not isinstance(other, Stream):
                raise WorkflowError(
                    f"union got {shown(other)}, which is not a stream", "pass streams", place
                )
            if other._workflow is not self._workflow:
                raise WorkflowError(
                    f"union got a stream of workflow {other._workflow.name!r}, but this one "
                    f"belongs to {self._workflow.name!r}",
                    "take both streams from one workflow",
                    place,
                )
        return self._to(UnionVertex(place, (self._vertex, *(o._vertex for o in others))))

    def map_reduce(
        self,
        name: str,
        *,
        reduce: object,
        map: Form | None = None,
        combine: Function | None = None,
        key: str | tuple[str, ...] | Function | None = None,
        time: str | _ProcessingTime | None = None,
        window: object | None = None,
        lateness: timedelta | None = None,
        early_every: timedelta | None = None,
        ordered: bool = False,
        panes: bool | None = None,
        ttl: timedelta | None = None,
        key_type: object | None = None,
        output: Declared | None = None,
        durable: bool = True,
    ) -> JobStream:
        """Add a job: ``map`` gives keyed values, ``combine`` thins them out, ``reduce`` folds.

        ``key`` names the key column(s) of an Arrow or SQL map (default ``key``), or is a
        function of the record; ``time`` names its event-time column, or is
        ``ms.processing_time``. ``ttl`` forgets keys that saw no value for that long. ``key_type``
        and ``output`` declare types that are otherwise taken from annotations or the first epoch.
        With ``durable=False`` the job's state is copied to peers but not put into the store: after
        a restart it begins empty.

        With a ``window`` (or several) the values of each window are reduced; a result says the
        window's start and end, and is given once the watermark has passed the end. The watermark
        is ``lateness`` behind the event times (default: what the sources say). ``early_every``
        also gives results of windows that are still open. A reduce function is called with
        ``(key, values, window)``; with ``ordered``, values come in the order of their times.
        ``panes`` says whether overlapping windows share partial results; by default measured
        rates decide.
        """
        place = caller()
        self._workflow._check_name(name, "job", place)
        stream = self
        if isinstance(map, SqlStep | FrameStep):
            stream, map = self._step("map", map, None), None
        if map is not None:
            _check_map(map, name, place)
        reducer = reducer_of(reduce, name)
        if combine is not None:
            _check_combine(combine, reducer, name, place)
        if key is not None:
            _check_key(key, place)
        windowing = _windowing(
            window,
            processing_time=isinstance(time, _ProcessingTime),
            lateness=lateness,
            early_every=early_every,
            ordered=ordered,
            panes=panes,
            name=name,
            place=place,
        )
        column = None if isinstance(time, _ProcessingTime) else time
        _check_columns(key, column, map, name, place)
        if windowing is not None:
            _check_windowed(reducer, ttl, combine, name, place)
        vertex = JobVertex(
            place,
            (stream._vertex,),
            name=name,
            map=map,
            combine=combine,
            reducer=reducer,
            key=key,
            time=column,
            ttl=_check_ttl(ttl, name, place),
            key_type=_key_type(key_type, map, key, name, place),
            output=_job_output(output, reducer, place),
            durable=_check_durable(durable, name, place),
            windowing=windowing,
        )
        self._workflow._vertices[name] = vertex
        return JobStream(self._workflow, vertex)

    def sink(self, name: str, sink: Sink) -> None:
        """Send the stream to a sink."""
        place = caller()
        self._workflow._check_name(name, "sink", place)
        if not isinstance(sink, Sink):
            raise WorkflowError(
                f"sink {name!r} got {shown(sink)}, which is not a sink",
                "use ms.parquet, ms.json, ms.csv, ms.console, ms.callback or ms.foreach_batch",
                place,
            )
        self._workflow._sinks[name] = SinkVertex(place, (self._vertex,), name=name, sink=sink)

    def _step(self, kind: str, form: Form, output: Declared | None) -> Stream:
        place = caller()
        if isinstance(form, SqlStep | FrameStep):
            _check_jvm_step(kind, form, output, place)
            return self._to(FrameVertex(place, (self._vertex,), step=form))
        schema = None if output is None else hints.declared_schema(output, place)
        if isinstance(form, ArrowFunction):
            if kind == "filter":
                raise WorkflowError(
                    "filter got an Arrow function",
                    "filter the batch inside .map(ms.arrow(...)), or use a record function",
                    place,
                )
            check_arguments(form.function, 1, kind, "(batch)")
            check_picklable(form.function, kind)
            return self._to(
                BatchStep(place, (self._vertex,), function=form.function, schema=schema)
            )
        check_callable(form, kind, place)
        check_arguments(form, 1, kind, "(record)")
        check_picklable(form, kind)
        if schema is None and kind != "filter":
            item = hints.returned(form) if kind == "map" else hints.yielded(form)
            schema = hints.record_schema(item)
        return self._to(RecordStep(place, (self._vertex,), kind=kind, function=form, schema=schema))

    def _to(self, vertex: Vertex) -> Stream:
        return Stream(self._workflow, vertex)


class JobStream(Stream):
    """The results of a job, and beside them what its windows could not take."""

    @property
    def late(self) -> Stream:
        """The values that came after all their windows were closed: ``(key, value, time)``."""
        return self._side("late")

    @property
    def ahead(self) -> Stream:
        """The values whose time was too far ahead to be believed: ``(key, value, time)``."""
        return self._side("ahead")

    @property
    def untimed(self) -> Stream:
        """The values that had no time: ``(key, value, None)``."""
        return self._side("untimed")

    def _side(self, side: Side) -> Stream:
        place, job = caller(), self._vertex
        assert isinstance(job, JobVertex)
        if job.windowing is None:
            raise WorkflowError(
                f"job {job.name!r} has no window, and so takes every value",
                f"leave .{side} out, or give the job a window=",
                place,
            )
        return self._to(SideVertex(place, (job,), side=side))


@dataclass(frozen=True)
class KeyedStream:
    """A stream with a chosen key, waiting for its reducer."""

    stream: Stream
    key: str | tuple[str, ...] | Function

    def reduce(
        self,
        name: str,
        reduce: object,
        *,
        combine: Function | None = None,
        time: str | _ProcessingTime | None = None,
        window: object | None = None,
        lateness: timedelta | None = None,
        early_every: timedelta | None = None,
        ordered: bool = False,
        panes: bool | None = None,
        ttl: timedelta | None = None,
        key_type: object | None = None,
        output: Declared | None = None,
        durable: bool = True,
    ) -> JobStream:
        """Add a job that reduces the records of each key."""
        return self.stream.map_reduce(
            name,
            reduce=reduce,
            combine=combine,
            key=self.key,
            time=time,
            window=window,
            lateness=lateness,
            early_every=early_every,
            ordered=ordered,
            panes=panes,
            ttl=ttl,
            key_type=key_type,
            output=output,
            durable=durable,
        )


class Workflow:
    """A directed acyclic graph of sources, jobs and sinks."""

    def __init__(self, name: str) -> None:
        _check_name(name, "workflow", caller())
        self.name = name
        self._place = caller()
        self._vertices: dict[str, SourceVertex | JobVertex] = {}
        self._sinks: dict[str, SinkVertex] = {}

    def source(
        self,
        name: str,
        source: object,
        *,
        lateness: timedelta = timedelta(0),
        idle_after: timedelta = timedelta(seconds=30),
        max_ahead: timedelta = timedelta(days=1),
    ) -> Stream:
        """Add a source: ``ms.text`` and its like, or any Spark streaming DataFrame.

        For windows: the watermark stays ``lateness`` behind the largest event time; a source
        without data for ``idle_after`` does not hold other sources back, and its watermark goes on
        with the clock; a value more than ``max_ahead`` ahead of the others is set aside.
        """
        place = caller()
        self._check_name(name, "source", place)
        timing = SourceTiming(
            _span("lateness", lateness, place, zero=True),
            _span("idle_after", idle_after, place),
            _span("max_ahead", max_ahead, place),
        )
        vertex = SourceVertex(
            place, (), name=name, source=_as_source(source, name, place), timing=timing
        )
        self._vertices[name] = vertex
        return Stream(self, vertex)

    def stream(self, name: str) -> Stream:
        """Refer to the stream of a source or job by name, also before it is defined."""
        place = caller()
        _check_name(name, "stream", place)
        return Stream(self, NamedVertex(place, (), name=name))

    def _check_name(self, name: str, kind: str, place: Place) -> None:
        _check_name(name, kind, place)
        taken = self._vertices.get(name) or self._sinks.get(name)
        if taken is not None:
            raise WorkflowError(
                f"the name {name!r} is taken by the {_KINDS[type(taken)]} at {taken.place}",
                f"give this {kind} another name",
                place,
            )


_KINDS: dict[type[Vertex], str] = {SourceVertex: "source", JobVertex: "job", SinkVertex: "sink"}


def _check_name(name: object, kind: str, place: Place) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WorkflowError(
            f"{shown(name)} is not a name for a {kind}",
            "use letters, digits, '_', '-' and '.', starting with a letter or digit",
            place,
        )


def _as_source(source: object, name: str, place: Place) -> Source:
    if isinstance(source, Source):
        return source
    if hasattr(source, "isStreaming"):
        try:
            return dataframe_source(source)
        except WorkflowError as problem:
            raise WorkflowError(problem.what, problem.fix, place) from None
    raise WorkflowError(
        f"source {name!r} got {shown(source)}, which is not a source",
        "use ms.text, ms.files, ms.rate, ms.socket, ms.replay or a Spark streaming DataFrame",
        place,
    )


def _check_jvm_step(
    kind: str, step: SqlStep | FrameStep, output: Declared | None, place: Place
) -> None:
    if kind == "filter" and isinstance(step, SqlStep) and step.expressions:
        raise WorkflowError(
            f"filter got ms.sql with expressions to select: {', '.join(step.expressions)}",
            'give the condition as ms.sql(where="..."), or select with .map(ms.sql(...))',
            place,
        )
    if output is not None:
        raise WorkflowError(
            f"{kind} got output= beside a step of Spark, which knows its columns itself",
            "leave output= out, or cast the columns in the step",
            place,
        )


def _check_map(map: Function | ArrowFunction, name: str, place: Place) -> None:
    role = f"map of job {name!r}"
    function: Function = map.function if isinstance(map, ArrowFunction) else map
    check_callable(function, role, place)
    check_arguments(function, 1, role, "(batch)" if function is not map else "(record)")
    check_picklable(function, role)


def _check_key(key: object, place: Place) -> None:
    columns = key if isinstance(key, tuple) else (key,)
    if columns and all(isinstance(column, str) and column for column in columns):
        return
    if not callable(key):
        raise WorkflowError(
            f"key got {shown(key)}",
            "give a column name, a tuple of column names, or a function of the record",
            place,
        )
    check_arguments(key, 1, "key function", "(record)")
    check_picklable(key, "key function")


def _check_columns(key: object, time: object, map: object, name: str, place: Place) -> None:
    """Refuse ``key`` and ``time`` where they would be ignored."""
    if time is not None and (not isinstance(time, str) or not time):
        raise WorkflowError(
            f"job {name!r} has time={shown(time)}", "give the name of a column", place
        )
    if isinstance(map, ArrowFunction):
        if callable(key):
            raise WorkflowError(
                f"job {name!r} has a key function beside an Arrow map",
                "name the key columns of the map's batches with key=",
                place,
            )
    elif map is not None and isinstance(key, str | tuple):
        raise WorkflowError(
            f"job {name!r} has key={key!r} beside a map of records, which has no columns",
            "leave key= out and yield (key, value) pairs, or give a function of the record",
            place,
        )
    elif time is not None and (map is not None or callable(key)):
        raise WorkflowError(
            f"job {name!r} has time={time!r} beside a function of records, which has no columns",
            "leave time= out and yield (key, value, timestamp) from the map",
            place,
        )


def _check_combine(combine: Function, reducer: Reducer, name: str, place: Place) -> None:
    check_callable(combine, f"combine of job {name!r}", place)
    check_arguments(combine, 2, f"combine of job {name!r}", "(key, values)")
    check_picklable(combine, f"combine of job {name!r}")
    if not isinstance(reducer, StatefulReducer):
        raise WorkflowError(
            f"job {name!r} has combine= beside a reducer that does not use it",
            "leave combine= out; it is for reduce functions (key, values, state)",
            place,
        )


def _check_ttl(ttl: object, name: str, place: Place) -> timedelta | None:
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise WorkflowError(
            f"job {name!r} has ttl={shown(ttl)}", "give a positive datetime.timedelta", place
        )
    return ttl


def _span(name: str, length: object, place: Place, *, zero: bool = False) -> int:
    shortest = timedelta(0) if zero else timedelta(microseconds=1)
    if not isinstance(length, timedelta) or length < shortest:
        what = "of 0 or more" if zero else "longer than 0"
        raise WorkflowError(
            f"{name} is {shown(length)}", f"give a datetime.timedelta {what}", place
        )
    return micros(length)


def _windowing(
    window: object,
    *,
    processing_time: bool,
    lateness: timedelta | None,
    early_every: timedelta | None,
    ordered: bool,
    panes: bool | None,
    name: str,
    place: Place,
) -> Windowing | None:
    """The windows of a job; without any, the options that go with them are refused."""
    given = {
        "lateness": lateness,
        "early_every": early_every,
        "ordered": ordered or None,
        "panes": panes,
        "time=ms.processing_time": processing_time or None,
    }
    if window is None:
        for option, value in given.items():
            if value is not None:
                raise WorkflowError(
                    f"job {name!r} has {option} but no window", "give it a window=", place
                )
        return None
    try:
        windows = as_windows(window)
    except ConfigError as problem:
        raise WorkflowError(f"job {name!r}: {problem}", "see docs/windows.md", place) from None
    for option in ("ordered", "panes"):
        if given[option] not in (None, True, False):
            raise WorkflowError(
                f"job {name!r} has {option}={shown(given[option])}", "give True or False", place
            )
    return Windowing(
        windows,
        processing_time,
        None if lateness is None else _span("lateness", lateness, place, zero=True),
        None if early_every is None else _span("early_every", early_every, place),
        ordered,
        panes,
    )


def _check_windowed(
    reducer: Reducer, ttl: object, combine: object, name: str, place: Place
) -> None:
    if ttl is not None:
        raise WorkflowError(
            f"job {name!r} has both a window and a ttl",
            "leave ttl= out: windows are forgotten when they are closed",
            place,
        )
    if combine is not None:
        raise WorkflowError(
            f"job {name!r} has both a window and combine=",
            "leave combine= out; a reducer with zero, add, merge and result is combined in panes",
            place,
        )
    if isinstance(reducer, ArrowReducer):
        raise WorkflowError(
            f"job {name!r} has a window and an Arrow reducer, which keeps its own state",
            "use a function (key, values, window), a combinable reducer or a built-in one",
            place,
        )


def _check_durable(durable: object, name: str, place: Place) -> bool:
    if not isinstance(durable, bool):
        raise WorkflowError(
            f"job {name!r} has durable={shown(durable)}", "give True or False", place
        )
    return durable


def _key_type(
    declared: object | None, map: object, key: object, name: str, place: Place
) -> pa.DataType | None:
    if declared is not None:
        return hints.declared_key_type(declared, f"key_type= of job {name!r}", place)
    if callable(key):
        role = f"the key function {name_of(key)} of job {name!r}"
        return hints.key_type(hints.returned(key), role, place_of(key) or place)
    if map is not None and not isinstance(map, ArrowFunction):
        role = f"the map {name_of(map)} of job {name!r}"
        kind, _ = hints.pair_types(hints.yielded(map))
        return hints.key_type(kind, role, place_of(map) or place)
    return None


def _job_output(declared: Declared | None, reducer: Reducer, place: Place) -> pa.Schema | None:
    if declared is not None:
        return hints.declared_schema(declared, place)
    if isinstance(reducer, StatefulReducer):
        return hints.record_schema(hints.yielded(reducer.function))
    return None
