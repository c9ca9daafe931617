"""Built-in aggregates as text, and back: for tools that have the state but not the user's code.

The text is what a user would write inside ``ms.aggregate(...)``, as ``n=count(),
avg=mean(column='temp')``.
"""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.state.aggregates.approx_distincts import ApproxDistinct
from millstream.state.aggregates.counts import Count
from millstream.state.aggregates.distincts import Distinct
from millstream.state.aggregates.ends import First, Last
from millstream.state.aggregates.extremes import Max, Min
from millstream.state.aggregates.means import Mean
from millstream.state.aggregates.protocol import Aggregate
from millstream.state.aggregates.sets import AggregateSet
from millstream.state.aggregates.sums import Sum
from millstream.state.aggregates.tops import TopK

_KINDS: dict[str, Any] = {
    "approx_distinct": ApproxDistinct,
    "count": Count,
    "distinct": Distinct,
    "first": First,
    "last": Last,
    "max": Max,
    "mean": Mean,
    "min": Min,
    "sum": Sum,
    "top_k": TopK,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def text_of(aggregates: AggregateSet) -> str:
    """A set as text; an aggregate that is not built in is shown by its class."""
    return ", ".join(f"{name}={_text(item)}" for name, item in aggregates.items)


def _text(item: Aggregate) -> str:
    kind = type(item)
    if kind not in _NAMES or not is_dataclass(item):
        return f"{kind.__module__}.{kind.__qualname__}"
    given = [(field.name, getattr(item, field.name)) for field in fields(item)]
    options = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
    return f"{_NAMES[kind]}({options})"


def aggregates_in(text: str) -> AggregateSet | None:
    """The set that a text describes; None if not all of it is built in."""
    try:
        call = ast.parse(f"aggregate({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return AggregateSet(tuple((_name(word), _aggregate(word.value)) for word in call.keywords))
    except (SyntaxError, ValueError, TypeError, KeyError, ConfigError):
        return None


def _name(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError("an aggregate without a name")
    return word.arg


def _aggregate(call: ast.expr) -> Aggregate:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("not a built-in aggregate")
    options = {_name(word): ast.literal_eval(word.value) for word in call.keywords}
    made: Aggregate = _KINDS[call.func.id](**options)
    return made
