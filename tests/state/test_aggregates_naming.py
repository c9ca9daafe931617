from __future__ import annotations

from dataclasses import dataclass

import pytest

from millstream.state.aggregates import (
    Aggregate,
    AggregateSet,
    aggregate,
    approx_distinct,
    as_set,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    sum,
    top_k,
)
from millstream.state.aggregates.counts import Count
from millstream.state.aggregates.naming import aggregates_in, text_of

EVERY = {
    "a": count(),
    "b": count("x"),
    "c": sum("it's"),
    "d": mean("x"),
    "e": min(),
    "f": max("x"),
    "g": top_k(3, "x", largest=False),
    "h": approx_distinct("x", precision=8),
    "k": distinct("x"),
    "i": first("x"),
    "j": last(),
}


def test_a_set_as_text_is_what_a_user_would_write() -> None:
    assert text_of(aggregate(n=count(), avg=mean("temp"))) == "n=count(), avg=mean(column='temp')"
    assert text_of(as_set(top_k(3))) == "value=top_k(k=3, largest=True)"


@pytest.mark.parametrize("given", EVERY.values(), ids=EVERY)
def test_every_built_in_comes_back_from_its_text(given: Aggregate) -> None:
    assert aggregates_in(text_of(as_set(given))) == as_set(given)


def test_a_set_comes_back_in_its_order() -> None:
    assert aggregates_in(text_of(aggregate(**EVERY))) == aggregate(**EVERY)


@dataclass(frozen=True, kw_only=True)
class Own(Count):
    """An aggregate of the user's."""


def test_what_is_not_built_in_is_named_but_does_not_come_back() -> None:
    text = text_of(AggregateSet((("n", Own()), ("m", count()))))

    assert text.startswith("n=") and text.endswith("test_aggregates_naming.Own, m=count()")
    assert aggregates_in(text) is None


@pytest.mark.parametrize(
    "text", ["", "nonsense", "n=", "n=print('x')", "n=count(y=1)", "**count()"]
)
def test_other_text_describes_nothing(text: str) -> None:
    assert aggregates_in(text) is None
