"""The operator that runs the windows of a job."""

from __future__ import annotations

from typing import Any

from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow, SessionWindow
from millstream.work.unit import ReduceOperator
from millstream.work.windows.count_windows import CountListOperator, CountOperator
from millstream.work.windows.forms import form_of
from millstream.work.windows.global_windows import GlobalOperator
from millstream.work.windows.join_operator import JoinOperator
from millstream.work.windows.session_windows import SessionOperator
from millstream.work.windows.time_windows import TimeWindowOperator


def window_operator(job: JobVertex, slots: int) -> ReduceOperator[Any]:
    """Make the operator of a windowed job, with empty state."""
    assert job.windowing is not None
    if isinstance(job.reducer, JoinReducer):
        return JoinOperator(job, slots)
    form, kind = form_of(job), job.windowing.windows[0]
    if isinstance(kind, SessionWindow):
        return SessionOperator(job, form)
    if isinstance(kind, CountWindow):
        return CountOperator(job, form) if form.folds else CountListOperator(job, form)
    if isinstance(kind, GlobalWindow):
        return GlobalOperator(job, form)
    return TimeWindowOperator(job, form, slots)
