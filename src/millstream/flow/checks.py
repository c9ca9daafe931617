"""Validation of the arguments of streams, jobs and sources.

Every error names the job, the option, a fix, and the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

import pyarrow as pa

from millstream.errors import ConfigError, Place, WorkflowError
from millstream.flow import hints
from millstream.flow.functions import (
    ArrowFunction,
    FrameStep,
    Function,
    SqlStep,
    check_arguments,
    check_callable,
    check_picklable,
    name_of,
    place_of,
)
from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    ReducerForm,
    StatefulReducer,
    WindowReducer,
)
from millstream.flow.row_reducer import RowReducer
from millstream.flow.sources import DataFrameSource, Source
from millstream.flow.windows import (
    CountWindow,
    GlobalWindow,
    SessionWindow,
    TimeWindow,
    Windowing,
    as_windows,
)
from millstream.state.values import value_text
from millstream.times import micros

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Declared: TypeAlias = "Mapping[str, object] | pa.Schema"


def check_name(name: object, kind: str, place: Place) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WorkflowError(
            f"{value_text(name)} is not a name for a {kind}",
            "use letters, digits, '_', '-' and '.', starting with a letter or digit",
            place,
        )


def as_source(source: object, name: str, place: Place) -> Source:
    if isinstance(source, Source):
        return source
    if hasattr(source, "isStreaming"):
        try:
            return DataFrameSource(frame=source)
        except WorkflowError as problem:
            raise WorkflowError(problem.what, problem.fix, place) from None
    raise WorkflowError(
        f"source {name!r} got {value_text(source)}, which is not a source",
        "use a function of ms.read, such as ms.read.text, or a Spark streaming DataFrame",
        place,
    )


def check_jvm_step(
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
            f"{kind} got output= beside a step of Spark, whose columns Spark knows",
            "leave output= out, or cast the columns in the step",
            place,
        )


def check_predicate(predicate: object, place: Place) -> None:
    if isinstance(predicate, ArrowFunction | SqlStep | FrameStep):
        raise WorkflowError(
            f"split got {value_text(predicate)}, which is not a predicate of single records",
            "give a function of the record, or filter twice",
            place,
        )
    check_callable(predicate, "split", place)
    assert callable(predicate)
    check_arguments(predicate, 1, "split", "(record)")
    check_picklable(predicate, "split")


def check_map(map: Function | ArrowFunction, name: str, place: Place) -> None:
    role = f"map of job {name!r}"
    function: Function = map.function if isinstance(map, ArrowFunction) else map
    check_callable(function, role, place)
    check_arguments(function, 1, role, "(batch)" if function is not map else "(record)")
    check_picklable(function, role)


def check_key(key: object, place: Place) -> None:
    columns = key if isinstance(key, tuple) else (key,)
    if columns and all(isinstance(column, str) and column for column in columns):
        return
    if not callable(key):
        raise WorkflowError(
            f"key got {value_text(key)}",
            "give a column name, a tuple of column names, or a function of the record",
            place,
        )
    check_arguments(key, 1, "key function", "(record)")
    check_picklable(key, "key function")


def check_columns(key: object, time: object, map: object, name: str, place: Place) -> None:
    """Reject ``key`` and ``time`` where they would be ignored."""
    if time is not None and (not isinstance(time, str) or not time):
        raise WorkflowError(
            f"job {name!r} has time={value_text(time)}", "give the name of a column", place
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


def check_combine(combine: Function, reducer: ReducerForm, name: str, place: Place) -> None:
    check_callable(combine, f"combine of job {name!r}", place)
    check_arguments(combine, 2, f"combine of job {name!r}", "(key, values)")
    check_picklable(combine, f"combine of job {name!r}")
    if not isinstance(reducer, StatefulReducer):
        raise WorkflowError(
            f"job {name!r} has combine= beside a reducer that does not use it",
            "leave combine= out; it is for reduce functions (key, values, state)",
            place,
        )


def check_ttl(ttl: object, name: str, place: Place) -> timedelta | None:
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise WorkflowError(
            f"job {name!r} has ttl={value_text(ttl)}", "give a positive datetime.timedelta", place
        )
    return ttl


def as_span(name: str, length: object, place: Place, *, zero: bool = False) -> int:
    shortest = timedelta(0) if zero else timedelta(microseconds=1)
    if not isinstance(length, timedelta) or length < shortest:
        what = "of 0 or more" if zero else "longer than 0"
        raise WorkflowError(
            f"{name} is {value_text(length)}", f"give a datetime.timedelta {what}", place
        )
    return micros(length)


def lateness_of(lateness: timedelta | None, place: Place) -> int | None:
    return None if lateness is None else as_span("lateness", lateness, place, zero=True)


def windowing_of(
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
    """The windows of a job; without any, their options are rejected."""
    if window is None:
        timed = {"lateness": lateness, "time=ms.processing_time": processing_time or None}
        for option, value in timed.items():
            if value is not None:
                raise WorkflowError(
                    f"job {name!r} has {option} but no window", "give it a window=", place
                )
        return None
    try:
        windows = as_windows(window)
    except ConfigError as problem:
        raise WorkflowError(f"job {name!r}: {problem}", "see docs/windows.md", place) from None
    for option, flag in {"ordered": ordered, "panes": panes}.items():
        if flag not in (None, True, False):
            raise WorkflowError(
                f"job {name!r} has {option}={value_text(flag)}", "give True or False", place
            )
    if early_every is not None and not isinstance(windows[0], TimeWindow | SessionWindow):
        raise WorkflowError(
            f"job {name!r} has early_every=, but this window has no early results: {windows[0]}",
            "leave early_every= out; count and global windows emit when their count or trigger "
            "fires",
            place,
        )
    return Windowing(
        windows,
        processing_time,
        lateness_of(lateness, place),
        None if early_every is None else as_span("early_every", early_every, place),
        ordered,
        panes,
    )


def check_windowed(
    windowing: Windowing,
    reducer: ReducerForm,
    ttl: object,
    combine: object,
    name: str,
    place: Place,
) -> None:
    stateful = isinstance(reducer, WindowReducer) and reducer.takes_state
    endless = isinstance(windowing.windows[0], CountWindow | GlobalWindow)
    if ttl is not None and not (endless or stateful):
        raise WorkflowError(
            f"job {name!r} has a ttl beside {windowing.windows[0]}",
            "leave ttl= out: the state of these windows is dropped when they close",
            place,
        )
    if stateful and windowing.early is not None:
        raise WorkflowError(
            f"job {name!r} has both early_every= and a reducer with state",
            "leave out early_every= or the parameter state: early results would change the state",
            place,
        )
    if combine is not None:
        raise WorkflowError(
            f"job {name!r} has both a window and combine=",
            "leave combine= out; a reducer with zero, add, merge and result is combined in panes",
            place,
        )
    taken = {"window_start", "window_end", "timing"}
    named = taken.intersection(
        reducer.aggregates.names if isinstance(reducer, AggregateReducer) else ()
    )
    if named:
        raise WorkflowError(
            f"job {name!r} has an aggregate called {min(named)!r}, as a column of its window is",
            "give it another name",
            place,
        )
    if isinstance(reducer, ArrowReducer) and not windowing.time_windows:
        raise WorkflowError(
            f"job {name!r} has an Arrow reducer with a window that is neither sliding nor "
            f"tumbling: {windowing.windows[0]}",
            "use ms.sliding or ms.tumbling, or a function (key, values, window)",
            place,
        )


def check_flag(option: str, value: object, name: str, place: Place) -> bool:
    if not isinstance(value, bool):
        raise WorkflowError(
            f"job {name!r} has {option}={value_text(value)}", "give True or False", place
        )
    return value


def key_type_of(
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


def output_of(declared: Declared | None, reducer: ReducerForm, place: Place) -> pa.Schema | None:
    if declared is not None:
        return hints.declared_schema(declared, place)
    if isinstance(reducer, StatefulReducer) and isinstance(reducer.instance, RowReducer):
        return reducer.instance.output
    if isinstance(reducer, StatefulReducer):
        return hints.record_schema(hints.yielded(reducer.function))
    return None
