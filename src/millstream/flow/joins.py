"""Joins: the options of ``Stream.join``, and their validation.

A join is a windowed job over a union of two streams, whose records are tagged with their side.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import pyarrow as pa

from millstream.errors import Place, WorkflowError
from millstream.flow import hints
from millstream.flow.checks import (
    Declared,
    as_span,
    check_columns,
    check_flag,
    check_key,
    key_type_of,
)
from millstream.flow.functions import Function, check_arguments, check_callable, check_picklable
from millstream.flow.reducers import JoinKind, JoinReducer
from millstream.flow.vertices import JobVertex, RecordStep, UnionVertex, Vertex
from millstream.flow.windows import TimeWindow, Windowing, WithinWindow
from millstream.state.values import value_text

if TYPE_CHECKING:
    from millstream.flow.streams import Stream
    from millstream.flow.workflow import Workflow

COLUMNS = ("key", "left", "right", "time")
"""The columns of the results of a join without ``on_match``."""


@dataclass(frozen=True, eq=False)
class JoinSide(RecordStep):
    """Turns records of one side of the join ``name`` into ``(key, (side, value), time)``.

    Where ``key`` names columns, the value is the whole row.
    """

    name: str = ""
    side: Literal["left", "right"] = "left"
    key: str | tuple[str, ...] | Function | None = None
    time: str | None = None

    @property
    def keying(self) -> JobVertex:
        """The choice of key and time, as a job makes it."""
        name = f"{self.name} ({self.side} side)"
        return JobVertex(self.place, name=name, key=self.key, time=self.time)


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """The options of a join as the user gave them, not validated."""

    within: object = None
    window: object = None
    key: Any = None
    right_key: Any = None
    time: Any = None
    right_time: Any = None
    on_match: object = None
    lateness: timedelta | None = None
    key_type: object = None
    output: Declared | None = None
    durable: object = True
    how: object = "inner"
    by_arrival: bool = False


def check_right(
    right: object, streams: type[Stream], workflow: Workflow, name: str, place: Place
) -> None:
    """Reject an object that a stream of a workflow cannot be joined with."""
    if not isinstance(right, streams):
        raise WorkflowError(
            f"join {name!r} got {value_text(right)}, which is not a stream",
            "pass the stream of the right side",
            place,
        )
    if right._workflow is not workflow:
        raise WorkflowError(
            f"join {name!r} got a stream of workflow {right._workflow.name!r}, but this one "
            f"belongs to {workflow.name!r}",
            "take both streams from one workflow",
            place,
        )


def join_vertex(
    left: Vertex, right: Vertex, options: JoinOptions, name: str, place: Place
) -> JobVertex:
    """Validate the options of a join of two streams."""
    window = _window(options, name, place)
    sides = _sides(left, right, options, name, place)
    lateness = options.lateness
    late = None if lateness is None else as_span("lateness", lateness, place, zero=True)
    on_match = _on_match(options.on_match, name, place)
    reach = window.size if isinstance(window, TimeWindow) else window.length
    return JobVertex(
        place,
        (UnionVertex(place, sides),),
        name=name,
        reducer=JoinReducer(reach, _how(options.how, name, place), on_match),
        key_type=_key_type(options.key_type, sides, name, place),
        output=_output(options.output, on_match, name, place),
        durable=check_flag("durable", options.durable, name, place),
        windowing=Windowing((window,), options.by_arrival, late),
        share=False,
    )


def _sides(
    left: Vertex, right: Vertex, options: JoinOptions, name: str, place: Place
) -> tuple[JoinSide, JoinSide]:
    key, time = options.key, options.time
    right_key = key if options.right_key is None else options.right_key
    right_time = time if options.right_time is None else options.right_time
    if options.by_arrival and right_time is not None:
        raise WorkflowError(
            f"join {name!r} has time=ms.processing_time and right_time={value_text(right_time)}",
            "leave right_time= out: both sides go by the same time",
            place,
        )
    for one, when in ((key, time), (right_key, right_time)):
        if one is not None:
            check_key(one, place)
        check_columns(one, when, None, name, place)
    return (
        JoinSide(place, (left,), name=name, side="left", key=key, time=time),
        JoinSide(place, (right,), name=name, side="right", key=right_key, time=right_time),
    )


def _how(given: object, name: str, place: Place) -> JoinKind:
    if given not in get_args(JoinKind):
        raise WorkflowError(
            f"join {name!r} has how={value_text(given)}",
            f"give one of {', '.join(map(repr, get_args(JoinKind)))}",
            place,
        )
    return cast(JoinKind, given)


def _window(options: JoinOptions, name: str, place: Place) -> TimeWindow | WithinWindow:
    within, window = options.within, options.window
    if (within is None) == (window is None):
        given = "neither within= nor window=" if within is None else "both within= and window="
        raise WorkflowError(
            f"join {name!r} has {given}",
            "say how far apart in time a pair may be with within=timedelta(...), or that it lies "
            "in one window with window=ms.tumbling(...) or ms.sliding(...)",
            place,
        )
    if within is None:
        if isinstance(window, TimeWindow):
            return window
        raise WorkflowError(
            f"join {name!r} has window={value_text(window)}",
            "give ms.tumbling(...) or ms.sliding(...), or within=timedelta(...) instead",
            place,
        )
    return WithinWindow(as_span(f"within= of join {name!r}", within, place, zero=True))


def _on_match(given: object, name: str, place: Place) -> Function | None:
    if given is None:
        return None
    role = f"on_match of join {name!r}"
    check_callable(given, role, place)
    assert callable(given)
    check_arguments(given, 3, role, "(key, left, right)")
    check_picklable(given, role)
    return given


def _key_type(
    declared: object, sides: tuple[JoinSide, JoinSide], name: str, place: Place
) -> pa.DataType | None:
    left, right = (key_type_of(declared, None, side.key, name, place) for side in sides)
    if left is not None and right is not None and left != right:
        raise WorkflowError(
            f"the keys of join {name!r} are {left} on the left side and {right} on the right",
            "give keys of one type: those of different types never meet",
            place,
        )
    return left or right


def _output(
    declared: Declared | None, on_match: Function | None, name: str, place: Place
) -> pa.Schema | None:
    if declared is None:
        if on_match is None:
            return None
        return hints.record_schema(hints.yielded(on_match) or hints.returned(on_match))
    schema = hints.declared_schema(declared, place)
    if on_match is None and tuple(schema.names) != COLUMNS:
        raise WorkflowError(
            f"join {name!r} has output= with columns {', '.join(schema.names)}, but gives "
            f"{', '.join(COLUMNS)}",
            "declare these, or make records of your own with on_match=",
            place,
        )
    return schema
