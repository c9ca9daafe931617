"""Which reducer runs the windows of a job."""

from __future__ import annotations

from typing import Any

from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow, SessionWindow
from millstream.work.unit import Reducing
from millstream.work.windows.count_windows import CountListReducing, CountReducing
from millstream.work.windows.forms import form_of
from millstream.work.windows.global_windows import GlobalReducing
from millstream.work.windows.join_reducer import JoinReducing
from millstream.work.windows.session_windows import SessionReducing
from millstream.work.windows.time_windows import TimeWindowReducing


def windowed(job: JobVertex, slots: int) -> Reducing[Any]:
    """The running form of a windowed job, with empty state."""
    assert job.windowing is not None
    if isinstance(job.reducer, JoinReducer):
        return JoinReducing(job, slots)
    form, kind = form_of(job), job.windowing.windows[0]
    if isinstance(kind, SessionWindow):
        return SessionReducing(job, form)
    if isinstance(kind, CountWindow):
        return CountReducing(job, form) if form.folds else CountListReducing(job, form)
    if isinstance(kind, GlobalWindow):
        return GlobalReducing(job, form)
    return TimeWindowReducing(job, form, slots)
