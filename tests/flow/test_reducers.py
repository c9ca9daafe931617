from __future__ import annotations

import threading
from typing import Any

import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    Combinable,
    CombiningReducer,
    StatefulReducer,
    reducer_of,
)
from millstream.state.aggregates.counts import Count
from tests.flow.places import line_of, line_of_call


def stateful(key: Any, values: Any, state: Any) -> None: ...


def without_state(key: Any, values: Any) -> None: ...


def over_tables(rows: Any, state: Any) -> Any:
    return state, rows


class Total:
    def zero(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, left: int, right: int) -> int:
        return left + right

    def result(self, accumulator: int) -> int:
        return accumulator


class TotalWithForgottenValue(Total):
    def add(self, accumulator: int) -> int:  # type: ignore[override]
        return accumulator


class TotalWithNumber(Total):
    zero = 0  # type: ignore[assignment]


class TotalWithLock(Total):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class StaticTotalWithLock:
    zero = staticmethod(lambda: 0)
    add = merge = staticmethod(lambda left, right: left + right)
    result = staticmethod(lambda accumulator: accumulator)

    def __init__(self) -> None:
        self.lock = threading.Lock()


PARTS: dict[str, Any] = {
    "zero": lambda: 0,
    "add": lambda accumulator, value: accumulator + value,
    "merge": lambda left, right: left + right,
    "result": lambda accumulator: accumulator,
}


def test_every_form_of_reducer_is_recognised() -> None:
    total, counts = Total(), ms.aggregate(n=ms.count())

    assert reducer_of(stateful, "j") == StatefulReducer(stateful)
    assert reducer_of(ms.arrow(over_tables), "j") == ArrowReducer(over_tables)
    assert reducer_of(total, "j") == CombiningReducer(total)
    assert reducer_of(counts, "j") == AggregateReducer(counts)


def test_a_single_built_in_becomes_a_set_with_the_name_value() -> None:
    reducer = reducer_of(ms.count(), "j")

    assert isinstance(reducer, AggregateReducer)
    assert reducer.aggregates.names == ("value",)


def test_a_callable_object_is_a_stateful_reducer() -> None:
    class Reduce:
        def __call__(self, key: Any, values: Any, state: Any) -> None: ...

    reduce = Reduce()

    assert reducer_of(reduce, "j") == StatefulReducer(reduce)


def test_a_combinable_is_made_of_functions_and_gives_its_accumulator_by_default() -> None:
    made = ms.combinable(zero=PARTS["zero"], add=PARTS["add"], merge=PARTS["merge"])

    assert isinstance(made, Combinable)
    assert made.result(made.merge(made.add(made.zero(), 3), 4)) == 7
    assert reducer_of(made, "j") == CombiningReducer(made)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_combinable_that_cannot_be_called_is_refused(part: str) -> None:
    with pytest.raises(WorkflowError, match=rf"{part}= of ms\.combinable got 0") as caught:
        ms.combinable(**{**PARTS, part: 0})

    assert caught.value.fix == "pass a function"
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        ("zero", "()"),
        ("add", "(accumulator, value)"),
        ("merge", "(left, right)"),
        ("result", "(accumulator)"),
    ],
)
def test_a_part_with_the_wrong_arguments_is_refused_with_its_own_line(
    part: str, shape: str
) -> None:
    def wrong(one: Any, two: Any, three: Any) -> Any: ...

    made = ms.combinable(**{**PARTS, part: wrong})

    with pytest.raises(WorkflowError) as caught:
        reducer_of(made, "totals")

    assert f"{part} of the reducer of job 'totals'" in caught.value.what
    assert caught.value.fix.endswith(f": {shape}")
    assert caught.value.place == line_of(wrong)


def test_a_method_with_the_wrong_arguments_is_refused_with_its_own_line() -> None:
    with pytest.raises(WorkflowError, match=r"\(accumulator, value\)") as caught:
        reducer_of(TotalWithForgottenValue(), "totals")

    assert caught.value.place == line_of(TotalWithForgottenValue.add)


def test_an_object_with_a_part_that_is_no_method_is_refused() -> None:
    with pytest.raises(WorkflowError, match="zero of the reducer of job 'totals' got 0") as caught:
        reducer_of(TotalWithNumber(), "totals")

    assert caught.value.place == line_of_call(caught)


def test_a_part_that_cannot_be_pickled_is_refused_with_its_own_line() -> None:
    lock = threading.Lock()

    def locked(left: int, right: int) -> int:
        with lock:
            return left + right

    made = ms.combinable(**{**PARTS, "merge": locked})

    with pytest.raises(WorkflowError, match=r"merge of the reducer .* cannot be pickled") as caught:
        reducer_of(made, "totals")

    assert caught.value.place == line_of(locked)


@pytest.mark.parametrize("given", [TotalWithLock(), StaticTotalWithLock()])
def test_an_object_that_cannot_be_pickled_is_refused(given: Combinable) -> None:
    with pytest.raises(WorkflowError, match=r"cannot be pickled.*lock.*; create what") as caught:
        reducer_of(given, "totals")

    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_a_reduce_function_takes_key_values_and_state() -> None:
    with pytest.raises(WorkflowError, match="reducer of job 'j', without_state") as caught:
        reducer_of(without_state, "j")

    assert caught.value.fix == "give it 3 positional arguments: (key, values, state)"
    assert caught.value.place == line_of(without_state)


def test_an_arrow_reducer_takes_rows_and_state() -> None:
    with pytest.raises(WorkflowError, match="reducer of job 'j', stateful") as caught:
        reducer_of(ms.arrow(stateful), "j")

    assert caught.value.fix == "give it 2 positional arguments: (rows, state)"
    assert caught.value.place == line_of(stateful)


@pytest.mark.parametrize("wrap", [lambda function: function, ms.arrow])
def test_a_reducer_that_cannot_be_pickled_is_refused_with_its_own_line(wrap: Any) -> None:
    lock = threading.Lock()

    def locked(*arguments: Any) -> None:
        lock.acquire()

    with pytest.raises(WorkflowError, match=r"reducer of job 'j', .*cannot be pickled") as caught:
        reducer_of(wrap(locked), "j")

    assert caught.value.place == line_of(locked)


@pytest.mark.parametrize("given", [None, 7, "count", Total, Count, ms.sql("a"), [stateful]])
def test_what_is_not_a_reducer_is_refused_with_the_line_of_the_call(given: object) -> None:
    with pytest.raises(WorkflowError, match="not a reducer; pass a function") as caught:
        reducer_of(given, "j")

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("name", ["count", "sum", "top_k", "aggregate"])
def test_a_built_in_that_was_not_called_is_refused_with_the_line_of_the_call(name: str) -> None:
    with pytest.raises(WorkflowError, match=rf"call it, as in reduce=ms\.{name}\(") as caught:
        reducer_of(getattr(ms, name), "j")

    assert caught.value.place == line_of_call(caught)


def test_an_aggregate_named_like_the_key_column_is_refused() -> None:
    with pytest.raises(WorkflowError, match="aggregate called 'key'"):
        reducer_of(ms.aggregate(key=ms.count()), "j")
