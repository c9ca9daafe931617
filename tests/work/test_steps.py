from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import Place
from millstream.flow.vertices import BatchStep, RecordStep
from millstream.state.values import ValueTypeError
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.steps import run_step
from tests.state.python_values import ODD, Basket, same
from tests.work.running import HERE

FRAME = pa.record_batch({"id": pa.array([1, 2, 3], pa.int32()), "s": ["a", "b", "c"]})


def run(step: RecordStep | BatchStep, chunk: Chunk) -> list[Any]:
    return [record for result in run_step(step, chunk) for record in result.records()]


def step(kind: str, function: Any, schema: pa.Schema | None = None) -> RecordStep:
    return RecordStep(HERE, kind=kind, function=function, schema=schema)


def arrow(function: Any) -> BatchStep:
    return BatchStep(HERE, function=function)


def test_map_filter_and_flat_map_do_what_they_say() -> None:
    numbers = Chunk(records=[1, 2, 3])

    assert run(step("map", lambda n: n * 2), numbers) == [2, 4, 6]
    assert run(step("filter", lambda n: n != 2), numbers) == [1, 3]
    assert run(step("flat_map", lambda n: [n] * n), numbers) == [1, 2, 2, 3, 3, 3]


def test_records_of_any_kind_pass_through_steps_as_they_are() -> None:
    assert same(run(step("map", lambda value: value), Chunk(records=ODD)), ODD)


def test_steps_read_rows_of_a_frame_by_name() -> None:
    assert run(step("map", lambda row: row.id + row["id"]), Chunk(batch=FRAME)) == [2, 4, 6]


def test_a_filter_keeps_the_types_of_a_frame() -> None:
    [result] = run_step(step("filter", lambda row: row.s != "b"), Chunk(batch=FRAME))

    assert result.batch().equals(FRAME.take(pa.array([0, 2])))


def test_a_filter_keeps_the_types_that_a_map_declared() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.float64())])
    [mapped] = run_step(step("map", lambda n: ("a", n), schema), Chunk(records=[1, 2]))

    [result] = run_step(step("filter", lambda pair: pair[1] > 1), mapped)

    assert result.batch().schema.types == schema.types
    assert result.records() == [("a", 2.0)]


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_a_stop_iteration_that_escapes_is_an_error_and_not_the_end(kind: str) -> None:
    def first_of_none(n: int) -> Any:
        return next(iter(())) if n == 2 else [n]

    with pytest.raises(UserFunctionError, match="StopIteration"):
        run(step(kind, first_of_none), Chunk(records=[1, 2, 3]))


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_an_error_names_the_step(kind: str) -> None:
    def divide(n: int) -> float:
        return 1 / n

    with pytest.raises(UserFunctionError) as caught:
        run(step(kind, divide), Chunk(records=[0]))

    assert (caught.value.role, caught.value.place) == (kind, _line(divide, 1))


def _line(function: Any, plus: int) -> Place:
    return Place(__file__, function.__code__.co_firstlineno + plus)


def test_a_flat_map_that_gives_nothing_to_go_through_is_the_users_error() -> None:
    def forgot(n: int) -> None:
        return None

    with pytest.raises(UserFunctionError) as caught:
        run(step("flat_map", forgot), Chunk(records=[1]))

    assert caught.value.place == _line(forgot, 0)


def test_a_declared_type_is_checked_at_once() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])

    with pytest.raises(RecordError, match=r"1\.5 \(float\) does not fit column 'value'"):
        run(step("map", lambda n: ("a", n), schema), Chunk(records=[1, 1.5]))


def test_arrow_functions_may_return_or_yield_batches_and_tables() -> None:
    table = pa.Table.from_batches([FRAME])

    def several(batch: pa.RecordBatch) -> Iterator[Any]:
        yield batch
        yield pa.Table.from_batches([batch.slice(1), batch])

    chunk = Chunk(batch=FRAME)

    assert len(run(arrow(lambda batch: batch), chunk)) == 3
    assert len(run(arrow(lambda batch: table), chunk)) == 3
    assert len(run(arrow(several), chunk)) == 8
    assert run(arrow(lambda batch: []), chunk) == []


@pytest.mark.parametrize("wrong", [None, "text", {"a": 1}, [1]], ids=repr)
def test_an_arrow_function_must_give_batches(wrong: Any) -> None:
    with pytest.raises(RecordError, match="where a pyarrow"):
        run(arrow(lambda batch: wrong), Chunk(batch=FRAME))


def test_arrow_functions_get_python_records_spelled_out() -> None:
    chunk = Chunk(records=[Basket(["egg"]), Basket([], open=False)])

    assert run(arrow(lambda batch: batch.select(["open"])), chunk) == [True, False]


def test_records_that_arrow_cannot_carry_are_a_typed_error() -> None:
    with pytest.raises(ValueTypeError, match="object"):
        run(arrow(lambda batch: batch), Chunk(records=[object()]))


def test_whether_a_chunk_has_types_does_not_depend_on_who_read_it() -> None:
    chunk = Chunk(records=[("a", 1)])

    chunk.batch()

    assert not chunk.is_batch
    assert Chunk(batch=FRAME).is_batch
    assert Chunk(records=[1], schema=pa.schema([("value", pa.int64())])).is_batch


def test_a_chunk_knows_its_length_in_either_form() -> None:
    assert (len(Chunk(records=[1, 2])), len(Chunk(batch=FRAME))) == (2, 3)
