from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import Place
from millstream.flow.vertices import RecordStep, SplitVertex
from millstream.work.chunk import Chunk
from millstream.work.failures import (
    RecordError,
    UserFunctionError,
    calling,
    record_error,
    user_error,
)
from millstream.work.keyed_values import keyed
from millstream.work.steps import run_split, run_step
from tests.work.running import HERE, job_of

FILE = str(Path(__file__))


def explode(value: Any) -> Any:
    raise ValueError(f"no {value}")  # the line that errors point at


LINE = explode.__code__.co_firstlineno + 1


def parse(text: str) -> Any:
    return json.loads(text)


def wrapped(function: Any, *arguments: Any) -> UserFunctionError:
    with pytest.raises(UserFunctionError) as caught, calling("map", function):
        function(*arguments)
    return caught.value


def test_an_error_names_role_function_file_line_and_cause() -> None:
    error = wrapped(explode, 3)

    assert error.place == Place(FILE, LINE)
    assert str(error).startswith(f"{FILE}:{LINE}: the map, explode, raised ValueError: no 3; ")
    assert isinstance(error.__cause__, ValueError)


def test_an_error_inside_a_library_points_at_the_users_own_line() -> None:
    error = wrapped(parse, "{")

    assert error.place == Place(FILE, parse.__code__.co_firstlineno + 1)
    assert "json" in error.trace


def test_a_function_without_frames_of_its_own_is_pointed_at_where_it_was_written() -> None:
    with pytest.raises(UserFunctionError) as caught, calling("map", explode):
        raise TypeError("explode() takes 1 positional argument")

    # The line that raised is this test's; with no frame at all, it is that of the function.
    assert caught.value.place is not None
    assert user_error("map", explode, TypeError("x")).place == Place(FILE, LINE - 1)


def test_a_built_in_has_a_name_and_no_place() -> None:
    error = user_error("map", len, TypeError("x"))

    assert (error.function, error.place) == ("len", None)
    assert str(error).startswith("the map, len, raised TypeError: x")


def test_the_key_is_named_when_there_is_one() -> None:
    assert " for key 'a' (str);" in str(user_error("reducer", len, KeyError("x"), "'a' (str)"))


def halves(n: int) -> Iterator[int]:
    yield 12 // n


@pytest.mark.parametrize("at", [0, 2, 4])
def test_the_record_is_shown_also_if_a_generator_raises_when_it_is_read(at: int) -> None:
    records = [1, 2, 3, 4, 5]
    records[at] = 0
    job = job_of(ms.count(), map=halves)

    with pytest.raises(UserFunctionError) as caught:
        list(keyed(job, Chunk(records=records)))

    assert caught.value.record == "0 (int)"
    assert "raised ZeroDivisionError" in str(caught.value)
    assert " for record 0 (int);" in str(caught.value)


@pytest.mark.parametrize("kind", ["map", "flat_map", "filter", "split"])
def test_steps_show_the_record_that_a_function_failed_for(kind: Any) -> None:
    chunk = Chunk(records=["fine", "wrong " + "x" * 1000, "fine"])

    def check(record: str) -> Any:
        return [record] if record == "fine" else explode(record)

    with pytest.raises(UserFunctionError) as caught:
        if kind == "split":
            run_split(SplitVertex(HERE, function=check), chunk)
        else:
            list(run_step(RecordStep(HERE, kind=kind, function=check), chunk))

    assert caught.value.record is not None
    assert caught.value.record.startswith("'wrong xxx")
    assert len(caught.value.record) < 400


def test_the_key_of_a_record_shows_it_too() -> None:
    job = job_of(ms.count(), key=explode)

    with pytest.raises(UserFunctionError, match=r"for record 7 \(int\)"):
        list(keyed(job, Chunk(records=[7])))


def test_a_record_whose_repr_raises_does_not_hide_the_error() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    job = job_of(ms.count(), map=explode)

    with pytest.raises(UserFunctionError, match="raises RuntimeError> \\(Odd\\)"):
        list(keyed(job, Chunk(records=[Odd()])))


def test_the_epoch_is_named_once_it_is_known() -> None:
    error, wrong = user_error("map", len, KeyError("x")), record_error("map", len, "is 1", "be 2")
    error.epoch = wrong.epoch = 7

    assert "; epoch 7 was not applied" in str(pickle.loads(pickle.dumps(error)))
    assert str(pickle.loads(pickle.dumps(wrong))).endswith("be 2; epoch 7 was not applied")


def test_our_own_errors_pass_as_they_are() -> None:
    error = record_error("map", explode, "gave nothing", "give something")

    with pytest.raises(RecordError) as caught, calling("map", explode):
        raise error

    assert caught.value is error


def test_errors_stay_small_however_deep_the_stack_and_long_the_message() -> None:
    def down(depth: int) -> Any:
        return explode("x" * 10_000) if depth == 0 else up(depth - 1)

    def up(depth: int) -> Any:
        return down(depth)

    error = wrapped(down, 200)

    assert error.place == Place(FILE, LINE)
    assert len(pickle.dumps(error)) < 5_000


def test_a_record_error_points_at_the_function_and_says_what_to_do() -> None:
    error = record_error("map of job 'a'", explode, "gave 3", "give 4")

    assert str(error) == f"{FILE}:{LINE - 1}: the map of job 'a', explode, gave 3; give 4"
    assert str(record_error("input", None, "has 3", "give 4")) == "the input has 3; give 4"


@pytest.mark.parametrize(
    "error",
    [
        user_error("map", explode, ValueError("x"), "1"),
        record_error("map", explode, "gave 3", "give 4"),
    ],
    ids=["user", "record"],
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))
