"""Jobs: the options of ``map_reduce`` and ``reduce``, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import Place, WorkflowError
from millstream.flow.checks import (
    Declared,
    check_columns,
    check_combine,
    check_flag,
    check_key,
    check_map,
    check_ttl,
    check_windowed,
    key_type_of,
    lateness_of,
    output_of,
    windowing_of,
)
from millstream.flow.functions import ArrowFunction, Function, Key, check_picklable
from millstream.flow.object_copies import copied
from millstream.flow.reducer_class import Reducer
from millstream.flow.reducers import StatefulReducer, reducer_of
from millstream.flow.row_reducer import RowReducer
from millstream.flow.vertices import JobVertex, Vertex
from millstream.flow.windows import ProcessingTime


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of a job as the user gave them, not validated."""

    reduce: object
    on_timer: object | None = None
    map: Function | ArrowFunction | None = None
    combine: Function | None = None
    key: Key | None = None
    time: str | ProcessingTime | None = None
    window: object | None = None
    lateness: timedelta | None = None
    early_every: timedelta | None = None
    ordered: bool = False
    panes: bool | None = None
    ttl: timedelta | None = None
    key_type: object | None = None
    output: Declared | None = None
    durable: bool = True
    share: bool = True


def check_row_reducer(reduce: object, options: JobOptions, name: str, place: Place) -> None:
    """Reject what a reducer of rows cannot have: it needs columns, and makes its own of outputs."""
    if not isinstance(reduce, RowReducer):
        return
    if options.map is not None or not isinstance(options.key, str | tuple):
        raise WorkflowError(
            f"job {name!r} has a reducer of rows, which needs the columns of its stream, and the "
            "names of those that are the key",
            "use .key_by with the names of columns, without a map",
            place,
        )
    for option, value in {"output": options.output, "combine": options.combine}.items():
        if value is not None:
            raise WorkflowError(
                f"job {name!r} has {option}= beside a reducer of rows",
                "declare the columns of its results where the reducer is made"
                if option == "output"
                else "leave combine= out",
                place,
            )
    if options.window is not None:
        raise WorkflowError(
            f"job {name!r} has a window beside a reducer of rows, which sees all rows of an epoch",
            "leave the window out; set timers",
            place,
        )
    if reduce.drops_late and not isinstance(options.time, str):
        raise WorkflowError(
            f"job {name!r} has a reducer by event time, and no column of event times",
            "name it with time= of .reduce",
            place,
        )
    if options.time is not None and not reduce.drops_late:
        raise WorkflowError(
            f"job {name!r} has time= beside a reducer that is not by event time",
            "leave time= out, or choose the event time where the reducer is made",
            place,
        )


def job_vertex(stream: Vertex, options: JobOptions, name: str, place: Place) -> JobVertex:
    """Validate the options of a job that reduces a stream."""
    key, time, map = options.key, options.time, options.map
    if map is not None:
        check_map(map, name, place)
    reduce = options.reduce
    if isinstance(reduce, Reducer):  # what open changes is not shared by two jobs
        check_picklable(reduce, f"reducer of job {name!r}")
        reduce = reduce.for_job() if isinstance(reduce, RowReducer) else copied(reduce)
    reducer = reducer_of(
        reduce, name, windowed=options.window is not None, on_timer=options.on_timer
    )
    if options.combine is not None:
        check_combine(options.combine, reducer, name, place)
    if key is not None:
        check_key(key, place)
    check_row_reducer(options.reduce, options, name, place)
    has_timers = isinstance(reducer, StatefulReducer) and reducer.on_timer is not None
    windowing = windowing_of(
        options.window,
        processing_time=isinstance(time, ProcessingTime),
        lateness=None if has_timers else options.lateness,
        early_every=options.early_every,
        ordered=options.ordered,
        panes=options.panes,
        name=name,
        place=place,
    )
    column = None if isinstance(time, ProcessingTime) else time
    check_columns(key, column, map, name, place)
    if windowing is not None:
        check_windowed(windowing, reducer, options.ttl, options.combine, name, place)
    return JobVertex(
        place,
        (stream,),
        name=name,
        map=map,
        combine=options.combine,
        reducer=reducer,
        key=key,
        time=column,
        lateness=lateness_of(options.lateness, place) if has_timers else None,
        ttl=check_ttl(options.ttl, name, place),
        key_type=key_type_of(options.key_type, map, key, name, place),
        output=output_of(options.output, reducer, place),
        durable=check_flag("durable", options.durable, name, place),
        windowing=windowing,
        share=check_flag("share", options.share, name, place),
    )
