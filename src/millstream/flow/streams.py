"""Streams and their steps, as frozen descriptions.

Nothing runs while a workflow is built; every error that needs no data is reported with the user's
file and line.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.errors import WorkflowError
from millstream.flow import hints
from millstream.flow.checks import (
    Declared,
    check_jvm_step,
    check_key,
    check_predicate,
)
from millstream.flow.functions import (
    ArrowFunction,
    Form,
    FrameStep,
    Function,
    Key,
    SqlStep,
    caller,
    check_arguments,
    check_callable,
    check_picklable,
)
from millstream.flow.jobs import JobOptions, job_vertex
from millstream.flow.joins import JoinOptions, check_right, join_vertex
from millstream.flow.reducers import JoinKind
from millstream.flow.sinks import Sink
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    JobVertex,
    RecordStep,
    Side,
    SideVertex,
    SinkVertex,
    SplitVertex,
    UnionVertex,
    Vertex,
)
from millstream.flow.windows import ProcessingTime, TimeWindow, Window
from millstream.state.aggregates import Aggregate, aggregate
from millstream.state.values import value_text

if TYPE_CHECKING:
    from millstream.flow.workflow import Workflow


class Stream:
    """A stream of records; every step returns a new one."""

    def __init__(self, workflow: Workflow, vertex: Vertex) -> None:
        self._workflow = workflow
        self._vertex = vertex

    def map(self, function: Form, *, output: Declared | None = None) -> Stream:
        """Turn each record (or batch, or frame) into one other.

        >>> named = orders.map(lambda order: (order.user, order.amount))
        """
        return self._step("map", function, output)

    def flat_map(self, function: Form, *, output: Declared | None = None) -> Stream:
        """Turn each record into none, one or several others.

        >>> words = orders.flat_map(lambda order: order.user.split())
        """
        return self._step("flat_map", function, output)

    def filter(self, predicate: Form) -> Stream:
        """Keep the records for which the predicate holds (``ms.sql(where=...)`` in the JVM).

        >>> large = orders.filter(lambda order: order.amount > 100)
        """
        return self._step("filter", predicate, None)

    def split(self, predicate: Function) -> tuple[Stream, Stream]:
        """Two streams: the records for which the predicate holds, and the others.

        The predicate is called once for each record.

        >>> large, small = orders.split(lambda order: order.amount > 100)
        """
        place = caller()
        check_predicate(predicate, place)
        split = SplitVertex(place, (self._vertex,), function=predicate)
        return (
            self._to(BranchVertex(place, (split,), holds=True)),
            self._to(BranchVertex(place, (split,), holds=False)),
        )

    def key_by(self, key: Key | None = None, *, type: object | None = None) -> KeyedStream:
        """Choose the key: a column, several columns, or a function of the record.

        Without one, records are ``(key, value)`` or ``(key, value, time)``. ``type`` declares the
        key's type, which otherwise comes from annotations or the first epoch.

        >>> flow = ms.Workflow("orders")
        >>> orders = flow.source("orders", ms.read.json("in/", schema="user string, amount bigint"))
        >>> spent = orders.key_by("user").reduce("spent", ms.sum("amount"))
        """
        if key is not None:
            check_key(key, caller())
        return KeyedStream(self, JobOptions(reduce=None, key=key, key_type=type))

    def union(self, *others: Stream) -> Stream:
        """Read several streams as one.

        >>> more = flow.source("more", ms.read.json("more/", schema="user string, amount bigint"))
        >>> both = orders.union(more)
        """
        place = caller()
        for other in others:
            if not isinstance(other, Stream):
                raise WorkflowError(
                    f"union got {value_text(other)}, which is not a stream", "pass streams", place
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
        on_timer: Function | None = None,
        key: Key | None = None,
        window: object | None = None,
        time: str | ProcessingTime | None = None,
        lateness: timedelta | None = None,
        ttl: timedelta | None = None,
        output: Declared | None = None,
    ) -> JobStream:
        """Add a job: ``map`` yields keyed values, ``combine`` pre-aggregates them.

        A map function yields ``(key, value)`` pairs, in windows also ``(key, value, time)``.
        ``key`` names the key column(s) of an Arrow or SQL map (default ``key``), or is a function
        of the record. Without ``map``, records are such pairs or rows. The other arguments are
        those of ``key_by(...).window(...).reduce(...)``, which has a few more.

        >>> def split(line):
        ...     for word in line.split():
        ...         yield word, 1
        >>> flow = ms.Workflow("wordcount")
        >>> lines = flow.source("lines", ms.read.text("books/"))
        >>> counts = lines.map_reduce("count", map=split, reduce=ms.sum())
        """
        stream = self
        if isinstance(map, SqlStep | FrameStep):
            stream, map = self._step("map", map, None), None
        return stream._job(
            name,
            JobOptions(
                reduce=reduce,
                map=map,
                combine=combine,
                on_timer=on_timer,
                key=key,
                window=window,
                time=time,
                lateness=lateness,
                ttl=ttl,
                output=output,
            ),
        )

    def join(
        self,
        right: Stream,
        name: str,
        *,
        how: JoinKind = "inner",
        within: timedelta | None = None,
        window: TimeWindow | None = None,
        key: Key | None = None,
        right_key: Key | None = None,
        time: str | ProcessingTime | None = None,
        right_time: str | None = None,
        on_match: Function | None = None,
        lateness: timedelta | None = None,
        key_type: object | None = None,
        output: Declared | None = None,
        durable: bool = True,
    ) -> JobStream:
        """Join with another stream: pairs of values that have one key and match in time.

        Either their event times differ by ``within`` at most, or they lie in one ``window``. Each
        pair is emitted once, as soon as both have arrived: a row of ``key``, ``left``, ``right``
        and ``time``, the later of both times; or what ``on_match(key, left, right)`` returns (a
        list or generator: several records; None: nothing). ``how`` is "inner", "left", "right" or
        "outer": a value of an outer side without a match is emitted once, with None for the other
        side and its own time, when the watermark has passed its time by more than ``within``, or
        the end of its last window.

        Records are ``(key, value)`` or ``(key, value, time)``, or rows: then ``key`` names the key
        column(s), or is a function of the record, and ``time`` names the column of event times;
        the value is the whole row. ``right_key`` and ``right_time`` are for the right side, if
        they differ. A value behind the watermark (with a window: whose windows are closed)
        goes to ``.late``, as ``(key, (side, value), time)``.

        >>> flow = ms.Workflow("clicks")
        >>> views, clicks = (flow.source(name, ms.read.rate()) for name in ("views", "clicks"))
        >>> soon, time = timedelta(minutes=5), "timestamp"
        >>> seen = views.join(clicks, "seen", how="left", within=soon, key="value", time=time)
        """
        place = caller()
        self._workflow._check_free(name, "join", place)
        check_right(right, Stream, self._workflow, name, place)
        by_arrival = isinstance(time, ProcessingTime)
        options = JoinOptions(
            how=how,
            within=within,
            window=window,
            key=key,
            right_key=right_key,
            time=None if by_arrival else time,
            right_time=right_time,
            on_match=on_match,
            lateness=lateness,
            key_type=key_type,
            output=output,
            durable=durable,
            by_arrival=by_arrival,
        )
        vertex = join_vertex(self._vertex, right._vertex, options, name, place)
        self._workflow._vertices[name] = vertex
        return JobStream(self._workflow, vertex)

    def sink(self, name: str, sink: Sink) -> None:
        """Send the stream to a sink.

        >>> orders.sink("copy", ms.write.parquet("copy/"))
        """
        place = caller()
        self._workflow._check_free(name, "sink", place)
        if not isinstance(sink, Sink):
            raise WorkflowError(
                f"sink {name!r} got {value_text(sink)}, which is not a sink",
                "use a function of ms.write, such as ms.write.parquet",
                place,
            )
        self._workflow._sinks[name] = SinkVertex(place, (self._vertex,), name=name, sink=sink)

    def _job(self, name: str, options: JobOptions) -> JobStream:
        place = caller()
        self._workflow._check_free(name, "job", place)
        vertex = job_vertex(self._vertex, options, name, place)
        self._workflow._vertices[name] = vertex
        return JobStream(self._workflow, vertex)

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
    """The results of a job, and its side outputs: values that its windows do not include."""

    @property
    def late(self) -> Stream:
        """The values that arrived after all their windows had closed: ``(key, value, time)``."""
        return self._side("late")

    @property
    def ahead(self) -> Stream:
        """The values whose time is too far ahead of the clock: ``(key, value, time)``."""
        return self._side("ahead")

    @property
    def untimed(self) -> Stream:
        """The values without a time: ``(key, value, None)``."""
        return self._side("untimed")

    def _side(self, side: Side) -> Stream:
        place, job = caller(), self._vertex
        assert isinstance(job, JobVertex)
        if job.windowing is None:
            raise WorkflowError(
                f"job {job.name!r} has no window, and so includes every value",
                f"leave .{side} out, or give the job a window=",
                place,
            )
        return self._to(SideVertex(place, (job,), side=side))


class KeyedStream:
    """A stream with a key, to be reduced or first divided into windows."""

    def __init__(self, stream: Stream, options: JobOptions) -> None:
        self._stream = stream
        self._options = options

    def window(
        self,
        *windows: Window,
        time: str | ProcessingTime | None = None,
        lateness: timedelta | None = None,
        early_every: timedelta | None = None,
        panes: bool | None = None,
    ) -> WindowedStream:
        """Divide the values of each key into windows; with several, each is reduced on its own.

        ``time`` names the column of event times, or is ``ms.processing_time``; records that are
        pairs carry their time as ``(key, value, time)``. The watermark is ``lateness`` behind the
        event times (default: what the sources say); Flink calls this bounded out-of-orderness,
        and Spark the delay of ``withWatermark``. ``early_every`` also emits results of windows
        that are still open. ``panes`` decides whether overlapping windows share partial
        results; by default measured rates decide.

        >>> flow = ms.Workflow("views")
        >>> views = flow.source("views", ms.read.json("views/", schema="user string, at timestamp"))
        >>> by_user = views.key_by("user").window(ms.tumbling(timedelta(minutes=1)), time="at")
        >>> per_minute = by_user.reduce("per_minute", ms.count())
        """
        given: object = windows[0] if len(windows) == 1 else list(windows)
        return WindowedStream(
            self._stream,
            replace(
                self._options,
                window=given,
                time=time,
                lateness=lateness,
                early_every=early_every,
                panes=panes,
            ),
        )

    def reduce(
        self,
        name: str,
        reduce: object,
        *,
        combine: Function | None = None,
        on_timer: Function | None = None,
        time: str | None = None,
        lateness: timedelta | None = None,
        ttl: timedelta | None = None,
        output: Declared | None = None,
        durable: bool = True,
    ) -> JobStream:
        """Add a job that reduces the values of each key, with state that lasts.

        ``reduce`` is a function ``(key, values, state)`` that yields results, a built-in such as
        ``ms.count()``, a combinable reducer, or ``ms.arrow(function)``. ``combine(key, values)``
        pre-aggregates values before the shuffle. ``ttl`` removes keys without a value for that
        long. ``output`` declares the columns of results, which otherwise come from annotations or
        the first epoch. With ``durable=False`` the state is replicated to peers but not written to
        the store: after a restart it is empty.

        With ``on_timer(key, timer, state)``, which yields results as ``reduce`` does, functions set
        timers with ``state.timers`` (see ``ms.Timers``). ``time`` names the column of event times,
        for timers in event time, and ``lateness`` is as in ``window``.

        >>> def longest(user, orders, state):
        ...     state["most"] = max(state.get("most", 0), *(order.amount for order in orders))
        ...     yield user, state["most"]
        >>> flow = ms.Workflow("orders")
        >>> orders = flow.source("orders", ms.read.json("in/", schema="user string, amount bigint"))
        >>> most = orders.key_by("user").reduce("most", longest)
        """
        options = replace(
            self._options,
            reduce=reduce,
            combine=combine,
            on_timer=on_timer,
            time=time,
            lateness=lateness,
            ttl=ttl,
            output=output,
            durable=durable,
        )
        return self._stream._job(name, options)

    def aggregate(self, name: str, /, **aggregates: Aggregate) -> JobStream:
        """Add a job with a column for each of some built-in aggregates.

        >>> flow = ms.Workflow("orders")
        >>> orders = flow.source("orders", ms.read.json("in/", schema="user string, amount bigint"))
        >>> totals = orders.key_by("user").aggregate("totals", n=ms.count(), sum=ms.sum("amount"))
        """
        return self.reduce(name, aggregate(**aggregates))


class WindowedStream:
    """A keyed stream divided into windows, to be reduced."""

    def __init__(self, stream: Stream, options: JobOptions) -> None:
        self._stream = stream
        self._options = options

    def reduce(
        self,
        name: str,
        reduce: object,
        *,
        ordered: bool = False,
        ttl: timedelta | None = None,
        output: Declared | None = None,
        durable: bool = True,
        share: bool = True,
    ) -> JobStream:
        """Add a job that reduces the values of each window, once the watermark has passed its end.

        ``reduce`` is a function ``(key, values)``; a built-in such as ``ms.count()``, whose results
        have the start and end of the window; a combinable reducer; or ``ms.arrow(function)`` over
        the rows of all keys. If a function has a parameter ``window``, it gets the window; if it
        has a parameter ``state``, the state of the key, a mapping that outlives its windows (in
        Flink the global state of a ``ProcessWindowFunction``). With ``ordered``, values are sorted
        by event time. Jobs that differ only in their windows are fused and share panes;
        ``share=False`` prevents it. ``ttl`` expires keys of count and global windows without values
        for that long, and ``state`` of keys without a result for that long. ``output`` and
        ``durable`` are as in ``KeyedStream.reduce``.

        >>> def longest(user, views, window, state):
        ...     if len(views) > state.get("most", 0):
        ...         state["most"] = len(views)
        ...         yield user, window.start, len(views)
        >>> flow = ms.Workflow("views")
        >>> views = flow.source("views", ms.read.json("views/", schema="user string, at timestamp"))
        >>> by_user = views.key_by("user").window(ms.session(timedelta(minutes=5)), time="at")
        >>> records = by_user.reduce("records", longest, ttl=timedelta(days=30))
        """
        options = replace(
            self._options,
            reduce=reduce,
            ordered=ordered,
            ttl=ttl,
            output=output,
            durable=durable,
            share=share,
        )
        return self._stream._job(name, options)

    def aggregate(self, name: str, /, **aggregates: Aggregate) -> JobStream:
        """Add a job with a column for each of some built-in aggregates.

        >>> flow = ms.Workflow("views")
        >>> views = flow.source("views", ms.read.json("views/", schema="user string, at timestamp"))
        >>> by_user = views.key_by("user").window(ms.tumbling(timedelta(hours=1)), time="at")
        >>> hourly = by_user.aggregate("hourly", views=ms.count(), last=ms.max("at"))
        """
        return self.reduce(name, aggregate(**aggregates))
