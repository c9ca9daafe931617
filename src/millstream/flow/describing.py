"""What identifies a workflow to those who keep its state: names, and forms of reducers."""

from __future__ import annotations

from typing import Literal

from millstream.flow.plan import Plan
from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    Reducer,
    StatefulReducer,
)
from millstream.flow.vertices import SourceVertex
from millstream.state.aggregates.naming import text_of

Form = Literal["stateful", "combining", "aggregate", "arrow"]


def form_of(reducer: Reducer) -> Form:
    """Which kind of state a reducer has."""
    match reducer:
        case StatefulReducer():
            return "stateful"
        case CombiningReducer():
            return "combining"
        case AggregateReducer():
            return "aggregate"
        case ArrowReducer():
            return "arrow"


def reducer_text(reducer: Reducer) -> str:
    """What tells reducers apart whose state differs; functions of one form may be exchanged."""
    match reducer:
        case StatefulReducer():
            return "a function (key, values, state)"
        case CombiningReducer():
            return "a combinable"
        case AggregateReducer(aggregates):
            return text_of(aggregates)
        case ArrowReducer():
            return "an Arrow function"


def source_texts(plan: Plan) -> tuple[str, ...]:
    """The sources, in the order in which they are read."""
    return tuple(
        f"{vertex.name} ({type(vertex.source).__name__.removesuffix('Source').lower()})"
        for _, vertex in plan.of_kind(SourceVertex)
    )
