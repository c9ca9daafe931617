"""``ms.transform_with_state`` and ``ms.apply_in_pandas_with_state``: what they take and refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millstream.errors import Place, WorkflowError
from millstream.flow.checks import Declared
from millstream.flow.ddl import SchemaSyntaxError, schema_of
from millstream.flow.function_shipping import ship
from millstream.flow.functions import caller, check_arguments, check_callable
from millstream.flow.hints import declared_schema
from millstream.flow.object_copies import copied
from millstream.flow.reducer_class import Reducer
from millstream.spark.processor_reducer import (
    EventTimeGroupStateReducer,
    EventTimeProcessorReducer,
    GroupStateReducer,
    ProcessorReducer,
    TimedGroupStateReducer,
    TimedProcessorReducer,
)
from millstream.spark.processor_rows import Frames, Rows
from millstream.state.values import value_text
from millstream.work.failures import user_error
from millstream.work.processors.handle import ProcessorHandle

MOST_INITIAL_BYTES = 256 * 2**20
_TIME_MODES: dict[str, type[ProcessorReducer]] = {
    kind.time_mode: kind
    for kind in (ProcessorReducer, TimedProcessorReducer, EventTimeProcessorReducer)
}
_TIMEOUTS: dict[str, type[GroupStateReducer]] = {
    kind.timeout: kind
    for kind in (GroupStateReducer, TimedGroupStateReducer, EventTimeGroupStateReducer)
}
_SYNTAX = "give a DDL string such as 'id string, n bigint', a StructType, or what output= takes"


def transform_with_state(
    processor: StatefulProcessor,
    *,
    output: Declared | object,
    time_mode: str = "none",
    output_mode: str = "update",
    in_pandas: bool = False,
    initial_state: DataFrame | pa.Table | None = None,
) -> Reducer:
    """Run a ``pyspark.sql.streaming.StatefulProcessor``, as it is, as the reducer of a job.

    The job has the columns of the grouping key: ``.key_by("id").reduce("counts", ...)``. ``output``
    has the columns of results, as ``outputStructType`` has. ``time_mode`` is "none",
    "processingTime" or "eventTime"; for event time the job names the column, with ``time=`` and
    perhaps ``lateness=`` of ``.reduce``. With ``in_pandas`` the processor is one of
    ``transformWithStateInPandas``. ``initial_state`` has the key columns of the job; it is
    collected here, and reduced in the first epoch of a checkpoint.

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> class Counts(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.n = handle.getValueState("n", "n bigint")
    ...
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         (n,) = self.n.get() or (0,)
    ...         self.n.update((n + len(list(rows)),))
    ...         yield Row(user=key[0], n=self.n.get()[0])
    ...
    ...     def close(self):
    ...         pass
    >>> reducer = ms.transform_with_state(Counts(), output="user string, n bigint")
    >>> counts = orders.key_by("user").reduce("orders_of_users", reducer)
    """
    place = caller()
    if not isinstance(processor, StatefulProcessor):
        raise WorkflowError(
            f"ms.transform_with_state got {value_text(processor)}",
            "pass an instance of a subclass of pyspark.sql.streaming.StatefulProcessor",
            place,
        )
    kind = _TIME_MODES.get(str(time_mode).lower())
    if kind is None:
        raise WorkflowError(
            f"ms.transform_with_state got time_mode={time_mode!r}",
            "give 'none', 'processingTime' or 'eventTime'",
            place,
        )
    _check_output_mode(output_mode, place)
    _check_init(processor, kind, place)
    form = Frames(_timezone()) if in_pandas else Rows()
    initial = None if initial_state is None else _collected(initial_state, place)
    return kind(processor, form, _schema(output, "output=", place), initial)


def apply_in_pandas_with_state(
    function: Callable[..., Any],
    *,
    output: Declared | object,
    state: object,
    timeout: str = "NoTimeout",
    output_mode: str = "update",
) -> Reducer:
    """Run a function of ``applyInPandasWithState``, as it is, as the reducer of a job.

    It is called as ``function(key, frames, state)``, with Spark's ``GroupState``, and yields pandas
    frames. ``output`` and ``state`` are as ``outputStructType`` and ``stateStructType``;
    ``timeout`` is a ``GroupStateTimeout``. For "EventTimeTimeout" the job names the column of event
    times, with ``time=`` of ``.reduce``.

    >>> def lengths(key, frames, state):
    ...     (n,) = state.get if state.exists else (0,)
    ...     state.update((n + sum(map(len, frames)),))
    ...     yield pd.DataFrame({"user": [key[0]], "n": [state.get[0]]})
    >>> reducer = ms.apply_in_pandas_with_state(
    ...     lengths, output="user string, n bigint", state="n bigint"
    ... )
    >>> counts = orders.key_by("user").reduce("lengths", reducer)
    """
    place = caller()
    check_callable(function, "ms.apply_in_pandas_with_state", place)
    check_arguments(function, 3, "ms.apply_in_pandas_with_state function", "(key, frames, state)")
    kind = _TIMEOUTS.get(timeout)
    if kind is None:
        raise WorkflowError(
            f"ms.apply_in_pandas_with_state got timeout={timeout!r}",
            f"give one of {', '.join(map(repr, _TIMEOUTS))}",
            place,
        )
    _check_output_mode(output_mode, place)
    stored = _schema(state, "state=", place)
    return kind(function, Frames(_timezone()), _schema(output, "output=", place), stored)


def _check_output_mode(mode: str, place: Place) -> None:
    if str(mode).lower() in ("append", "update"):
        return
    raise WorkflowError(
        f"output_mode={mode!r} cannot be had: what a processor yields is emitted once, and an "
        "epoch does not repeat the results of all earlier ones",
        "give 'append' or 'update', which are the same here",
        place,
    )


def _check_init(processor: StatefulProcessor, kind: type[ProcessorReducer], place: Place) -> None:
    """Run ``init`` of a copy, as Spark does on its driver, to find what cannot be had."""
    name = type(processor).__qualname__
    try:
        ship(processor)
        copy = copied(processor)
    except Exception as problem:
        raise WorkflowError(
            f"the processor {name} cannot be pickled: {problem}",
            "create what it holds (connections, locks, open files) in init",
            place,
        ) from None
    try:
        copy.init(ProcessorHandle(kind.time_mode))  # type: ignore[arg-type]
        copy.close()
    except Exception as problem:
        found = user_error("init of the processor", copy.init, problem)
        raise WorkflowError(
            f"init of the processor {name} raised {found.error}",
            "correct it; it is run once here, as Spark runs it on its driver",
            found.place or place,
        ) from problem


def _schema(given: object, role: str, place: Place) -> pa.Schema:
    if isinstance(given, dict):
        return declared_schema(given, place)
    try:
        found = schema_of(given)
    except SchemaSyntaxError as problem:
        raise WorkflowError(f"{role} got {problem}", _SYNTAX, place) from None
    names = found.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise WorkflowError(
            f"{role} has two columns {twice!r}", "give each column a name of its own", place
        )
    return found


def _collected(given: DataFrame | pa.Table, place: Place) -> pa.Table:
    if isinstance(given, DataFrame) and given.isStreaming:
        raise WorkflowError(
            "initial_state= got a streaming DataFrame, which has no end",
            "give a batch DataFrame, such as one of spark.read",
            place,
        )
    if not isinstance(given, DataFrame | pa.Table):
        raise WorkflowError(
            f"initial_state= got {value_text(given)}",
            "give a DataFrame with the key columns of the job, not grouped, or a pyarrow.Table",
            place,
        )
    rows = given.toArrow() if isinstance(given, DataFrame) else given
    if rows.nbytes > MOST_INITIAL_BYTES:
        raise WorkflowError(
            f"initial_state= has {rows.nbytes:,} bytes, and is sent to every node",
            f"give at most {MOST_INITIAL_BYTES:,}, or read the rows as a source",
            place,
        )
    return rows


def _timezone() -> str:
    """The time zone of the session, in which Spark shows times without one in pandas."""
    session = SparkSession.getActiveSession()
    found = None if session is None else session.conf.get("spark.sql.session.timeZone", None)
    return found or "UTC"
