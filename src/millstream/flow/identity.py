"""The identity of a workflow in its checkpoints: names, and forms of reducers."""

from __future__ import annotations

from typing import Literal

from millstream.flow.plan import Plan
from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    JoinReducer,
    ReducerForm,
    StatefulReducer,
    WindowReducer,
)
from millstream.flow.vertices import JobVertex, SourceVertex
from millstream.flow.windows import SLIDING, TUMBLING
from millstream.state.aggregates.naming import text_of

_FUNCTION = "a function (key, values, state)"
_TIMERS = "a function (key, values, state) with timers"
_WINDOWS = "a function (key, values) of windows"
_STATEFUL_WINDOWS = "a function (key, values, state) of windows"
Form = Literal["stateful", "combining", "aggregate", "arrow", "windowed", "join"]


def form_of(job: JobVertex) -> Form:
    """Which kind of state a job has."""
    if job.windowing is not None:
        return "join" if isinstance(job.reducer, JoinReducer) else "windowed"
    return _form_of(job.reducer)


def _form_of(reducer: ReducerForm) -> Form:
    match reducer:
        case StatefulReducer() | WindowReducer():
            return "stateful"
        case CombiningReducer():
            return "combining"
        case AggregateReducer():
            return "aggregate"
        case ArrowReducer():
            return "arrow"
        case JoinReducer():
            return "join"


def reducer_text(job: JobVertex) -> str:
    """A text that differs for reducers whose state differs; functions of one form may change."""
    match job.reducer:
        case StatefulReducer():
            return _TIMERS if job.has_timers else _FUNCTION
        case WindowReducer():
            return _STATEFUL_WINDOWS if job.reducer.takes_state else _WINDOWS
        case CombiningReducer():
            return "a combinable"
        case AggregateReducer(aggregates):
            return text_of(aggregates)
        case ArrowReducer():
            return "an Arrow function"
        case JoinReducer():
            return f"a {job.reducer.label}"


def windows_text(job: JobVertex) -> str:
    """The windows of a job as text, or empty; state is valid for one set of windows."""
    if job.windowing is None:
        return ""
    by_clock = ", by processing time" if job.windowing.processing_time else ""
    return f"{job.windowing}{by_clock}"


def gains_timers(before: str, now: str) -> bool:
    """Whether a function has got timers, by the ``reducer_text`` of its job: its state is valid."""
    return (before, now) == (_FUNCTION, _TIMERS)


def loses_timers(before: str, now: str) -> bool:
    """Whether a function has no timers any more, by the ``reducer_text`` of its job."""
    return (before, now) == (_TIMERS, _FUNCTION)


def has_window_state(reducer: str) -> bool:
    """Whether a ``reducer_text`` is of a windowed function with keyed state beside its windows."""
    return reducer == _STATEFUL_WINDOWS


def has_time_windows(windows: str) -> bool:
    """Whether a ``windows_text`` is of sliding or tumbling windows, whose state is in panes."""
    return windows.startswith((TUMBLING, SLIDING))


def source_texts(plan: Plan) -> tuple[str, ...]:
    """The sources, in the order in which they are read."""
    return tuple(
        f"{vertex.name} ({vertex.source.kind})" for _, vertex in plan.of_kind(SourceVertex)
    )
