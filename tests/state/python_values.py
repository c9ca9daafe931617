"""Python objects of many kinds, and how to compare them strictly."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import settings
from hypothesis import strategies as st

untimed = settings(deadline=None)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Basket:
    """A user's mutable class."""

    items: list[str]
    open: bool = True


scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800"),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.timedeltas(),
    st.decimals(allow_nan=False, places=3),
    st.just(Colour.RED),
    st.just(Level.LOW),
)
"""Everything from None to an Enum; some of it does not fit Arrow."""

nested: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Basket, st.lists(st.text(max_size=3), max_size=2)),
        st.builds(Point, st.integers(-3, 3), st.floats(allow_nan=False)),
    ),
    max_leaves=6,
)


def same(left: Any, right: Any) -> bool:
    """Compare strictly: 1, True and 1.0, 0.0 and −0.0 differ; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float | decimal.Decimal):
        return repr(left) == repr(right)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, Basket):
        return same(left.__dict__, right.__dict__)
    return bool(left == right)


ODD: list[Any] = [
    2**63,
    -(2**63) - 1,
    "\ud800",
    decimal.Decimal("1.50"),
    dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    dt.datetime(2024, 5, 1, 12, fold=1),
    dt.datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("UTC")),
    dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(0), "GMT")),
    dt.time(3, 4),
    {1, 2},
    frozenset({"a"}),
    (1, "a"),
    [1, [2.0, [True]]],
    {"a": {1: (2,)}},
    OrderedDict(a=1),
    Colour.RED,
    Level.LOW,
    Point(1, 2.0),
    Basket(["egg"]),
    1j,
    range(3),
]
"""Values that no plain Arrow column gives back as they were."""
