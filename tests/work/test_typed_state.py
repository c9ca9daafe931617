"""State that is declared as a dataclass: stored by field, checked, and evolved."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional, TypedDict

import cloudpickle
import numpy as np
import pandas as pd
import pytest

import millstream as ms
from millstream.flow.function_shipping import ship
from tests.work.running import Running, job_of


@dataclass
class Visits:
    n: int = 0
    longest: float | None = None
    pages: list[str] = field(default_factory=list)


@dataclass(slots=True)
class VisitsLater:
    """What ``Visits`` became: a field is gone, one is new."""

    n: int = 0
    pages: list[str] = field(default_factory=list)
    country: str = "unknown"


@dataclass
class VisitsOfOtherType:
    n: str = ""


def visit(key: str, values: list[str], state: Visits) -> Iterator[Any]:
    state.n += len(values)
    state.pages.extend(values)
    state.longest = max(state.longest or 0, *map(len, values))
    yield key, state.n, len(state.pages)


def read(running: Running, key: str) -> Any:
    return dict(running.operator.state.items(np.ones(16, dtype=bool))).get(key)


def test_fields_are_the_entries_of_a_key() -> None:
    running = Running(job_of(visit))

    assert running.epoch([("a", "x"), ("a", "yy")]) == [("a", 2, 2)]
    assert running.epoch([("a", "z")]) == [("a", 3, 3)]

    assert read(running, "a") == {"n": 3, "longest": 2, "pages": ["x", "yy", "z"]}


def test_a_class_declares_its_state_once() -> None:
    class Counting(ms.Reducer):
        state: Visits

        def reduce(self, key: str, values: list[str], state: Visits) -> Iterator[Any]:
            state.n += len(values)
            yield key, state.n

    running = Running(job_of(Counting()))
    running.epoch([("a", "x")])

    assert running.epoch([("a", "x")]) == [("a", 2)]


def test_a_class_that_was_pickled_by_value_is_as_good() -> None:
    shipped = cloudpickle.loads(ship(job_of(visit)))
    running = Running(shipped)
    running.epoch([("a", "x")])

    assert running.epoch([("a", "z")]) == [("a", 2, 2)]
    assert read(running, "a") == {"n": 2, "longest": 1, "pages": ["x", "z"]}


def test_what_has_its_default_is_not_stored() -> None:
    def look(key: str, values: list[str], state: Visits) -> None:
        if values == ["count"]:
            state.n += 1

    running = Running(job_of(look))
    running.epoch([("a", "look"), ("b", "count")])

    assert read(running, "a") is None
    assert read(running, "b") == {"n": 1}


def test_clear_removes_the_key() -> None:
    def count(key: str, values: list[str], state: Visits) -> Iterator[Any]:
        if values == ["clear"]:
            state.clear()  # type: ignore[attr-defined]
            yield key, state.n, state.pages
        elif values == ["again"]:
            state.clear()  # type: ignore[attr-defined]
            state.n = 7
        else:
            state.n += 1
            state.pages.append("p")

    running = Running(job_of(count))
    running.epoch([("a", "x"), ("b", "x")])

    assert running.epoch([("a", "clear"), ("b", "again")]) == [("a", 0, [])]
    assert read(running, "a") is None
    assert read(running, "b") == {"n": 7}


def evolved(running: Running, function: object) -> Running:
    """The same state under another function."""
    later = Running(job_of(function))
    state = running.operator.state
    later.operator.state.apply(state.decode(state.encode(state.snapshot(range(16)))))
    return later


def test_a_new_field_has_its_default_and_a_removed_one_is_dropped() -> None:
    def later(key: str, values: list[str], state: VisitsLater) -> Iterator[Any]:
        yield key, state.n, state.pages, state.country
        state.country = values[-1]

    running = Running(job_of(visit))
    running.epoch([("a", "x")])
    running = evolved(running, later)

    assert running.epoch([("a", "fr")]) == [("a", 1, ["x"], "unknown")]
    assert read(running, "a") == {"n": 1, "pages": ["x"], "country": "fr"}


def test_a_field_that_is_stored_with_another_type_is_an_error_with_job_key_and_field() -> None:
    def later(key: str, values: list[str], state: VisitsOfOtherType) -> None:
        raise AssertionError("not called")

    running = Running(job_of(visit))
    running.epoch([("a", "x")])
    with pytest.raises(ms.StateTypeError) as caught:
        evolved(running, later).epoch([("a", "y")])

    assert (caught.value.job, caught.value.field, caught.value.expected) == ("job", "n", "str")
    assert "key 'a' (str): the field 'n' is stored as 1 (int)" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_field_that_is_set_to_another_type_is_an_error_with_the_users_line() -> None:
    def wrong(key: str, values: list[str], state: Visits) -> None:
        state.n = "one"  # type: ignore[assignment]

    with pytest.raises(ms.StateTypeError, match=r"test_typed_state.py:\d+: .*was set to 'one'"):
        Running(job_of(wrong)).epoch([("a", "x")])


def test_a_scalar_of_numpy_fits_the_type_that_it_stands_for() -> None:
    def count(key: str, values: list[str], state: Visits) -> None:
        state.n = np.int64(5)  # type: ignore[assignment]

    running = Running(job_of(count))
    running.epoch([("a", "x")])

    assert read(running, "a") == {"n": 5}


class Place(TypedDict):
    city: str


@dataclass
class Unchecked:
    value: Any = None
    place: Place | None = None


@pytest.mark.parametrize("value", [1, "one", None, [1]])
def test_a_field_whose_annotation_has_no_instances_takes_any_value(value: object) -> None:
    def keep(key: str, values: list[str], state: Unchecked) -> Iterator[Any]:
        yield state.value, state.place
        state.value, state.place = value, {"city": "Rome"}

    running = Running(job_of(keep))

    assert running.epoch([("a", "x")]) == [(None, None)]
    assert running.epoch([("a", "x")]) == [(value, {"city": "Rome"})]


NONE = np.int64(0)


@dataclass
class Scalars:
    count: np.int64 = NONE
    ratio: np.float32 | None = None
    number: np.number[Any] = NONE
    day: np.datetime64 | None = None
    moment: pd.Timestamp | None = None
    span: Optional[pd.Timedelta] = None  # noqa: UP045 - as many still write it


def test_a_field_that_is_declared_as_a_scalar_of_numpy_or_pandas_is_read_as_a_plain_value() -> None:
    def keep(key: str, values: list[str], state: Scalars) -> Iterator[Any]:
        state.count += np.int64(1)
        state.ratio = np.float32(0.5)
        state.number = np.float64(1.5)
        state.day = np.datetime64("2024-02-29")
        state.moment = pd.Timestamp("2024-02-29")
        state.span = pd.Timedelta(hours=1)
        yield key, int(state.count)

    running = Running(job_of(keep))
    running.epoch([("a", "x")])

    assert running.epoch([("a", "x")]) == [("a", 2)]
    assert read(running, "a") == {
        "count": 2,
        "ratio": 0.5,
        "number": 1.5,
        "day": dt.date(2024, 2, 29),
        "moment": dt.datetime(2024, 2, 29),
        "span": dt.timedelta(hours=1),
    }


def test_a_scalar_field_refuses_other_plain_values() -> None:
    def wrong(key: str, values: list[str], state: Scalars) -> None:
        state.count = "one"  # type: ignore[assignment]

    with pytest.raises(ms.StateTypeError, match=r"'count' was set to 'one' .*declared as int64"):
        Running(job_of(wrong)).epoch([("a", "x")])


def test_an_exception_of_the_function_is_still_its_own_error() -> None:
    def broken(key: str, values: list[str], state: Visits) -> None:
        raise ValueError("no")

    with pytest.raises(ms.UserFunctionError, match=r"broken, raised ValueError: no for key 'a'"):
        Running(job_of(broken)).epoch([("a", "x")])


def test_state_in_an_output_is_an_object_of_the_declared_class() -> None:
    def show(key: str, values: list[str], state: Visits) -> Iterator[Any]:
        state.n += 1
        yield key, state

    [(_, found)] = Running(job_of(show)).epoch([("a", "x")])

    assert found == Visits(n=1) and type(found) is Visits


@dataclass
class Private:
    _view: int = 0
    _cleared: int = 0


def test_fields_may_begin_with_an_underscore() -> None:
    def reduce(key: str, values: list[int], state: Private) -> Iterator[Any]:
        state._view += 1
        state._cleared -= 1
        yield key, state._view, state._cleared

    running = Running(job_of(reduce))
    running.epoch([("a", 1)])

    assert running.epoch([("a", 1)]) == [("a", 2, -2)]
