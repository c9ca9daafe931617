"""Spark's stateful processors and ``applyInPandasWithState`` functions, run as reducers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from millstream.flow.object_copies import copied
from millstream.flow.reducer_class import ReducerContext
from millstream.flow.row_reducer import RowReducer
from millstream.spark.processor_rows import RowForm, row_maker
from millstream.times import BEGINNING
from millstream.work.processors.handle import TTL_TIMER, ProcessorHandle, TimeMode, time_in
from millstream.work.processors.state_schema import StateSchema
from millstream.work.processors.variables import UNBOUND, Scope, ValueVariable
from millstream.work.row_values import InitialValues


class _RowProcessor(RowReducer):
    """What both share: rows in a form of Spark's, and keys as tuples."""

    def __init__(self, form: RowForm, output: pa.Schema, initial: pa.Table | None = None) -> None:
        self._form = form
        self._take = form.taker(output)
        self.output = output
        self.initial = initial
        self._is_single = True

    def open(self, context: ReducerContext) -> None:
        self._is_single = len(context.key_columns) == 1

    def _key(self, key: Any) -> tuple[Any, ...]:
        return (key,) if self._is_single else key

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        return self._form.read(rows, cuts)

    def read_initial(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        return self._form.read(rows, cuts)

    def encode(self, outputs: Sequence[Any]) -> pa.RecordBatch:
        return self._form.encode(outputs, self.output)


def _milliseconds(watermark: int) -> int:
    """A watermark as Spark has it: 0 as long as there is none."""
    return 0 if watermark <= BEGINNING else watermark // 1000


_METHODS = {
    "open": "init",
    "reduce": "handleInputRows",
    "on_timer": "handleExpiredTimer",
    "close": "close",
}


class ProcessorReducer(_RowProcessor):
    """A ``StatefulProcessor`` without timers."""

    time_mode: ClassVar[TimeMode] = "none"

    def __init__(
        self,
        processor: StatefulProcessor,
        form: RowForm,
        output: pa.Schema,
        initial: pa.Table | None,
    ) -> None:
        super().__init__(form, output, initial)
        self._processor = processor
        self._handle = ProcessorHandle(self.time_mode)
        self._times = TimerValues(-1, -1)
        self._is_plain = False

    @property
    def title(self) -> str:
        """The name of the processor, for people."""
        return type(self._processor).__qualname__.rpartition("<locals>.")[2]

    def users_function(self, method: str) -> object:
        return getattr(self._processor, _METHODS[method])

    def open(self, context: ReducerContext) -> None:
        super().open(context)
        self._handle = ProcessorHandle(self.time_mode, context.job, row_maker)
        self._processor.init(self._handle)  # type: ignore[arg-type]
        self._handle.initialized()
        self._is_plain = self._handle.is_plain

    def for_job(self) -> Self:
        return type(self)(copied(self._processor), self._form, self.output, self.initial)

    def close(self) -> None:
        self._processor.close()

    def begin(self, epoch: int, time: int, watermark: int) -> None:
        scope = self._handle.scope
        scope.epoch, scope.now = epoch, time // 1000

    def reduce(self, key: Any, values: Any, state: Any) -> list[Any]:
        handle, found = self._handle, (key,) if self._is_single else key
        if self._is_plain and type(values) is list:
            # The usual case, for every key: calls are inlined here.
            scope = handle.scope
            scope.view = state
            result = self._take(self._processor.handleInputRows(found, iter(values), self._times))
            scope.view = UNBOUND
            return result
        handle.bind(state)
        outputs: list[Any] = []
        if type(values) is InitialValues:
            for row in self._initial_states(values.initial):
                self._processor.handleInitialState(found, row, self._times)
            values = values.values
        if values is not None:
            rows = self._form.given(values)
            outputs = self._take(self._processor.handleInputRows(found, rows, self._times))
        handle.release()
        return outputs

    def _initial_states(self, given: Any) -> Any:
        return self._form.given(given)


class TimedProcessorReducer(ProcessorReducer):
    """A ``StatefulProcessor`` with timers by processing time."""

    time_mode: ClassVar[TimeMode] = "processingtime"

    def begin(self, epoch: int, time: int, watermark: int) -> None:
        super().begin(epoch, time, watermark)
        self._handle.scope.watermark = mark = _milliseconds(watermark)
        self._times = TimerValues(time // 1000, mark)

    def on_timer(self, key: Any, timer: Any, state: Any) -> list[Any]:
        handle = self._handle
        handle.bind(state)
        outputs: list[Any] = []
        if timer.name == TTL_TIMER:
            handle.purge()
        else:
            expiry = int(timer.name)
            handle.fires = expiry
            outputs = self._take(
                self._processor.handleExpiredTimer(
                    key=self._key(key),
                    timerValues=self._times,
                    expiredTimerInfo=ExpiredTimerInfo(expiry),
                )
            )
            # As in Spark, where a timer is there until its handler has returned.
            handle.deleteTimer(expiry)
        handle.release()
        return outputs


class EventTimeProcessorReducer(TimedProcessorReducer):
    """A ``StatefulProcessor`` with timers by event time."""

    time_mode = "eventtime"
    drops_late = True


class GroupStateReducer(_RowProcessor):
    """A function of ``applyInPandasWithState`` without timeouts."""

    timeout: ClassVar[str] = GroupStateTimeout.NoTimeout
    _TIMER = "timeout"
    _STATE = "state"

    def __init__(
        self, function: Callable[..., Any], form: RowForm, output: pa.Schema, state: Any
    ) -> None:
        super().__init__(form, output)
        self._function = function
        self._schema = state
        self._scope = Scope()
        self._state = ValueVariable(
            self._STATE, self._scope, StateSchema(state, "the state of a group", row_maker), None
        )
        self._names: list[str] = []

    @property
    def title(self) -> str:
        """The name of the function, for people."""
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return str(name).rpartition("<locals>.")[2]

    def users_function(self, method: str) -> object:
        return self._function

    def for_job(self) -> Self:
        return type(self)(copied(self._function), self._form, self.output, self._schema)

    def begin(self, epoch: int, time: int, watermark: int) -> None:
        self._scope.watermark = _milliseconds(watermark)
        self._scope.now = time // 1000

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        self._names = rows.schema.names
        return super().read(rows, cuts)

    def reduce(self, key: Any, values: Any, state: Any) -> list[Any]:
        return self._call(key, self._form.given(values), state, timed_out=False)

    def _call(self, key: Any, frames: Any, state: Any, *, timed_out: bool) -> list[Any]:
        self._scope.bind(state)
        value = self._state.get()
        group = GroupState(
            Row(*value) if value is not None else None,  # type: ignore[arg-type]
            self._scope.now,
            self._scope.watermark,
            self.timeout,
            timed_out,
            self.timeout == GroupStateTimeout.EventTimeTimeout,
            value is not None,
            False,
            False,
            GroupState.NO_TIMESTAMP,
            b"",
            None,  # type: ignore[arg-type]
        )
        outputs = self._take(self._function(self._key(key), frames, group))
        if group._updated:
            self._state.update(tuple(group.get))
        elif group._removed:
            self._state.clear()
        self._set_timeout(group, state)
        return outputs

    def _set_timeout(self, group: GroupState, state: Any) -> None:
        """Timeouts are those that the last call has set; without any there is no timer."""


class TimedGroupStateReducer(GroupStateReducer):
    """A function of ``applyInPandasWithState`` with timeouts by processing time."""

    timeout = GroupStateTimeout.ProcessingTimeTimeout
    domain: ClassVar[str] = "processing"

    def on_timer(self, key: Any, timer: Any, state: Any) -> list[Any]:
        import pandas as pd

        frames = iter([pd.DataFrame(columns=self._names)])
        return self._call(key, frames, state, timed_out=True)

    def _set_timeout(self, group: GroupState, state: Any) -> None:
        at = group._timeout_timestamp
        if at == GroupState.NO_TIMESTAMP:
            state.timers.cancel(self._TIMER, time=self.domain)
        else:
            # Spark fires once the time is past, not when it is reached.
            state.timers.set(self._TIMER, at=time_in(int(at) + 1), time=self.domain)


class EventTimeGroupStateReducer(TimedGroupStateReducer):
    """A function of ``applyInPandasWithState`` with timeouts by event time."""

    timeout = GroupStateTimeout.EventTimeTimeout
    domain = "event"
    drops_late = True
