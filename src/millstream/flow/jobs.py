"""Jobs: the options of ``map_reduce`` and ``reduce``, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import Place
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
    output_of,
    windowing_of,
)
from millstream.flow.functions import ArrowFunction, Function, Key
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex, Vertex
from millstream.flow.windows import ProcessingTime


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of a job as the user gave them, not validated."""

    reduce: object
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


def job_vertex(stream: Vertex, options: JobOptions, name: str, place: Place) -> JobVertex:
    """Validate the options of a job that reduces a stream."""
    key, time, map = options.key, options.time, options.map
    if map is not None:
        check_map(map, name, place)
    reducer = reducer_of(options.reduce, name, windowed=options.window is not None)
    if options.combine is not None:
        check_combine(options.combine, reducer, name, place)
    if key is not None:
        check_key(key, place)
    windowing = windowing_of(
        options.window,
        processing_time=isinstance(time, ProcessingTime),
        lateness=options.lateness,
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
        ttl=check_ttl(options.ttl, name, place),
        key_type=key_type_of(options.key_type, map, key, name, place),
        output=output_of(options.output, reducer, place),
        durable=check_flag("durable", options.durable, name, place),
        windowing=windowing,
        share=check_flag("share", options.share, name, place),
    )
