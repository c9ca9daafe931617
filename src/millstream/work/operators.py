"""The operator that runs a job's reducer."""

from __future__ import annotations

from typing import Any

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    StatefulReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.state.keyed import KeyedState
from millstream.work.column_operators import AggregateOperator, ArrowOperator
from millstream.work.keyed_operators import CombiningOperator, FunctionOperator, MakeState
from millstream.work.row_operator import RowOperator
from millstream.work.timer_operator import TimerOperator
from millstream.work.unit import ReduceOperator
from millstream.work.windows.choice import window_operator


def is_keyed(job: JobVertex) -> bool:
    """Whether a job has keyed state, which may spill to disk."""
    return job.windowing is None and isinstance(job.reducer, StatefulReducer | CombiningReducer)


def operator_for(
    job: JobVertex, slots: int, make_state: MakeState = KeyedState
) -> ReduceOperator[Any]:
    """Make the operator of a job, with empty state; keyed state is made by ``make_state``."""
    if job.windowing is not None:
        return window_operator(job, slots)
    if isinstance(job.reducer, StatefulReducer):
        kind = TimerOperator if job.has_timers else FunctionOperator
        operator = kind(job, job.reducer, make_state)
        if job.row_reducer is None:
            return operator
        return RowOperator(job, job.row_reducer, operator, slots)
    if isinstance(job.reducer, CombiningReducer):
        return CombiningOperator(job, job.reducer, make_state)
    if isinstance(job.reducer, AggregateReducer):
        return AggregateOperator(job, job.reducer, slots)
    assert isinstance(job.reducer, ArrowReducer)
    return ArrowOperator(job, job.reducer, slots)
