"""The operator that runs the windows of a job."""

from __future__ import annotations

from typing import Any

from millstream.flow.reducers import JoinReducer, WindowReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow, SessionWindow
from millstream.state.keyed import KeyedState
from millstream.work.unit import ReduceOperator
from millstream.work.windows.count_windows import CountListOperator, CountOperator
from millstream.work.windows.forms import Form, form_of
from millstream.work.windows.global_windows import GlobalOperator
from millstream.work.windows.join_operator import JoinOperator
from millstream.work.windows.session_windows import SessionOperator
from millstream.work.windows.stateful import (
    StatefulForm,
    StatefulWindowOperator,
    without_ttl,
)
from millstream.work.windows.time_windows import TimeWindowOperator


def window_operator(job: JobVertex, slots: int) -> ReduceOperator[Any]:
    """Make the operator of a windowed job, with empty state."""
    if isinstance(job.reducer, JoinReducer):
        return JoinOperator(job, slots)
    if isinstance(job.reducer, WindowReducer) and job.reducer.takes_state:
        keyed = KeyedState()
        form = StatefulForm(job, job.reducer, keyed)
        return StatefulWindowOperator(job, form, _of(without_ttl(job), form, slots), keyed)
    return _of(job, form_of(job), slots)


def _of(job: JobVertex, form: Form[Any], slots: int) -> ReduceOperator[Any]:
    assert job.windowing is not None
    kind = job.windowing.windows[0]
    if isinstance(kind, SessionWindow):
        return SessionOperator(job, form)
    if isinstance(kind, CountWindow):
        return CountOperator(job, form) if form.folds else CountListOperator(job, form)
    if isinstance(kind, GlobalWindow):
        return GlobalOperator(job, form)
    return TimeWindowOperator(job, form, slots)
