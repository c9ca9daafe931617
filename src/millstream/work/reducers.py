"""The running form of a job's reducer: what a node keeps for each job."""

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
from millstream.work.column_reducers import AggregateReducing, ArrowReducing
from millstream.work.keyed_reducers import CombiningReducing, FunctionReducing
from millstream.work.unit import Reducing
from millstream.work.windows.choice import windowed


def is_keyed(job: JobVertex) -> bool:
    """Whether a job's state is a mapping for every key, which may spill; if not, it is columns."""
    return job.windowing is None and isinstance(job.reducer, StatefulReducer | CombiningReducer)


def reducing_for(job: JobVertex, slots: int, state: KeyedState | None = None) -> Reducing[Any]:
    """Make the running form of a job's reducer, with empty state; ``state`` if it is keyed."""
    if job.windowing is not None:
        return windowed(job, slots)
    if isinstance(job.reducer, StatefulReducer):
        return FunctionReducing(job, job.reducer, state)
    if isinstance(job.reducer, CombiningReducer):
        return CombiningReducing(job, job.reducer, state)
    if isinstance(job.reducer, AggregateReducer):
        return AggregateReducing(job, job.reducer, slots)
    assert isinstance(job.reducer, ArrowReducer)
    return ArrowReducing(job, job.reducer, slots)
