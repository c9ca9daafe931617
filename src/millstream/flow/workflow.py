"""Workflows and streams: what users write.

Everything here is a frozen description; nothing runs while a workflow is built, and every
mistake that can be seen without data is reported with the user's file and line. ``plan.py``
checks the whole and puts it in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypedDict, Unpack

from millstream.errors import Place, WorkflowError
from millstream.flow import hints
from millstream.flow.checks import (
    Declared,
    as_source,
    as_span,
    check_columns,
    check_combine,
    check_flag,
    check_jvm_step,
    check_key,
    check_map,
    check_name,
    check_predicate,
    check_ttl,
    check_windowed,
    key_type_of,
    output_of,
    windowing_of,
)
from millstream.flow.drawing import Drawing
from millstream.flow.explaining import explain
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
)
from millstream.flow.joins import JoinArguments, JoinOptions, check_right, join_vertex
from millstream.flow.plan import plan
from millstream.flow.reducers import reducer_of
from millstream.flow.sinks import Sink
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    JobVertex,
    NamedVertex,
    RecordStep,
    Side,
    SideVertex,
    SinkVertex,
    SourceTiming,
    SourceVertex,
    SplitVertex,
    UnionVertex,
    Vertex,
)
from millstream.flow.windows import ProcessingTime
from millstream.state.values import shown


class JobOptions(TypedDict, total=False):
    """What a job can be told besides its map, key and reducer."""

    combine: Function
    time: str | ProcessingTime
    window: object
    lateness: timedelta
    early_every: timedelta
    ordered: bool
    panes: bool
    ttl: timedelta
    key_type: object
    output: Declared
    durable: bool
    share: bool


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

    def split(self, predicate: Function) -> tuple[Stream, Stream]:
        """Two streams: the records for which the predicate holds, and the others.

        The predicate is asked once for each record.
        """
        place = caller()
        check_predicate(predicate, place)
        split = SplitVertex(place, (self._vertex,), function=predicate)
        return (
            self._to(BranchVertex(place, (split,), holds=True)),
            self._to(BranchVertex(place, (split,), holds=False)),
        )

    def key_by(self, key: str | tuple[str, ...] | Function) -> KeyedStream:
        """Choose the key: a column, several columns, or a function of the record."""
        check_key(key, caller())
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
        time: str | ProcessingTime | None = None,
        window: object | None = None,
        lateness: timedelta | None = None,
        early_every: timedelta | None = None,
        ordered: bool = False,
        panes: bool | None = None,
        ttl: timedelta | None = None,
        key_type: object | None = None,
        output: Declared | None = None,
        durable: bool = True,
        share: bool = True,
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
        ``(key, values, window)``, an Arrow one with ``(rows, window)``; with ``ordered``, values
        come in the order of their times.
        ``panes`` says whether overlapping windows share partial results; by default measured
        rates decide. Jobs that differ in their windows alone are reduced together, and so share
        panes; ``share=False`` keeps a job to itself.
        """
        place = caller()
        self._workflow._check_free(name, "job", place)
        stream = self
        if isinstance(map, SqlStep | FrameStep):
            stream, map = self._step("map", map, None), None
        if map is not None:
            check_map(map, name, place)
        reducer = reducer_of(reduce, name)
        if combine is not None:
            check_combine(combine, reducer, name, place)
        if key is not None:
            check_key(key, place)
        windowing = windowing_of(
            window,
            processing_time=isinstance(time, ProcessingTime),
            lateness=lateness,
            early_every=early_every,
            ordered=ordered,
            panes=panes,
            name=name,
            place=place,
        )
        column = None if isinstance(time, ProcessingTime) else time
        check_columns(key, column, map, name, place)
        if windowing is not None:
            check_windowed(windowing, reducer, ttl, combine, name, place)
        vertex = JobVertex(
            place,
            (stream._vertex,),
            name=name,
            map=map,
            combine=combine,
            reducer=reducer,
            key=key,
            time=column,
            ttl=check_ttl(ttl, name, place),
            key_type=key_type_of(key_type, map, key, name, place),
            output=output_of(output, reducer, place),
            durable=check_flag("durable", durable, name, place),
            windowing=windowing,
            share=check_flag("share", share, name, place),
        )
        self._workflow._vertices[name] = vertex
        return JobStream(self._workflow, vertex)

    def join(self, right: Stream, name: str, **options: Unpack[JoinArguments]) -> JobStream:
        """Join with another stream: pairs of values that have one key and belong together in time.

        Either their event times differ by ``within`` at most, or they lie in one ``window``. Each
        pair is given once, as soon as both have come: a row of ``key``, ``left``, ``right`` and
        ``time``, the later of both times; or what ``on_match(key, left, right)`` returns (a list
        or generator: several records; None: nothing).

        Records are ``(key, value)`` or ``(key, value, time)``, or rows: then ``key`` names the key
        column(s), or is a function of the record, and ``time`` names the column of event times;
        the value is the whole row. ``right_key`` and ``right_time`` say it for the right side
        where it differs. A value behind the watermark (with a window: whose windows are closed)
        goes to ``.late``, as ``(key, (side, value), time)``.
        """
        return self._join(right, name, JoinOptions(**options))

    def left_join(self, right: Stream, name: str, **options: Unpack[JoinArguments]) -> JobStream:
        """Join, and also give the values of this side that have met none of the other.

        Such a value is given once, with ``right`` None and its own time, when the watermark has
        passed its time by more than ``within``, or the end of its last window.
        """
        return self._join(right, name, JoinOptions(outer=True, **options))

    def _join(self, right: Stream, name: str, options: JoinOptions) -> JobStream:
        place = caller()
        self._workflow._check_free(name, "join", place)
        check_right(right, Stream, self._workflow, name, place)
        if isinstance(options.time, ProcessingTime):
            options = replace(options, time=None, by_arrival=True)
        vertex = join_vertex(self._vertex, right._vertex, options, name, place)
        self._workflow._vertices[name] = vertex
        return JobStream(self._workflow, vertex)

    def sink(self, name: str, sink: Sink) -> None:
        """Send the stream to a sink."""
        place = caller()
        self._workflow._check_free(name, "sink", place)
        if not isinstance(sink, Sink):
            raise WorkflowError(
                f"sink {name!r} got {shown(sink)}, which is not a sink",
                "use a function of ms.write, such as ms.write.parquet",
                place,
            )
        self._workflow._sinks[name] = SinkVertex(place, (self._vertex,), name=name, sink=sink)

    def _step(self, kind: str, form: Form, output: Declared | None) -> Stream:
        place = caller()
        if isinstance(form, SqlStep | FrameStep):
            check_jvm_step(kind, form, output, place)
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

    def reduce(self, name: str, reduce: object, **options: Unpack[JobOptions]) -> JobStream:
        """Add a job that reduces the records of each key; options are those of ``map_reduce``."""
        return self.stream.map_reduce(name, reduce=reduce, key=self.key, **options)


class Workflow:
    """A directed acyclic graph of sources, jobs and sinks."""

    def __init__(self, name: str) -> None:
        check_name(name, "workflow", caller())
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
        """Add a source: one of ``ms.read``, or any Spark streaming DataFrame.

        For windows: the watermark stays ``lateness`` behind the largest event time; a source
        without data for ``idle_after`` does not hold other sources back, and its watermark goes on
        with the clock; a value more than ``max_ahead`` ahead of the clock is set aside.
        """
        place = caller()
        self._check_free(name, "source", place)
        timing = SourceTiming(
            as_span("lateness", lateness, place, zero=True),
            as_span("idle_after", idle_after, place),
            as_span("max_ahead", max_ahead, place),
        )
        vertex = SourceVertex(
            place, (), name=name, source=as_source(source, name, place), timing=timing
        )
        self._vertices[name] = vertex
        return Stream(self, vertex)

    def stream(self, name: str) -> Stream:
        """Refer to the stream of a source or job by name, also before it is defined."""
        place = caller()
        check_name(name, "stream", place)
        return Stream(self, NamedVertex(place, (), name=name))

    def explain(self) -> str:
        """The plan as text: stages, jobs, windows and panes, what is shared and what is kept."""
        return explain(plan(self))

    def draw(self) -> Drawing:
        """The plan as a picture, which notebooks show: ``.svg``, ``.mermaid``, ``.save(path)``."""
        return Drawing(plan(self))

    def _check_free(self, name: str, kind: str, place: Place) -> None:
        check_name(name, kind, place)
        taken = self._vertices.get(name) or self._sinks.get(name)
        if taken is not None:
            raise WorkflowError(
                f"the name {name!r} is taken by the {_KINDS[type(taken)]} at {taken.place}",
                f"give this {kind} another name",
                place,
            )


_KINDS: dict[type[Vertex], str] = {SourceVertex: "source", JobVertex: "job", SinkVertex: "sink"}
