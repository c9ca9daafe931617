from __future__ import annotations

import enum
import functools
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import Place, WorkflowError
from millstream.flow.functions import (
    ArrowFunction,
    FrameStep,
    SqlStep,
    caller,
    check_arguments,
    check_picklable,
    name_of,
    place_of,
)
from tests.flow.places import line_of, line_of_call


def takes_one(record: Any) -> Any:
    return record


def takes_two(record: Any, extra: Any) -> Any:
    return record, extra


def gives_a_second(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def wrapper(record: Any) -> Any:
        return function(record, "extra")

    return wrapper


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Holder:
    def method(self, record: Any) -> Any:
        return record

    def __call__(self, record: Any) -> Any:
        return record


class Color(enum.Enum):
    RED = 1


# -- the wrappers --------------------------------------------------------------------------


def test_the_wrappers_keep_what_they_are_given() -> None:
    assert ms.arrow(takes_one) == ArrowFunction(takes_one)
    assert ms.dataframe(takes_one) == FrameStep(takes_one)
    assert ms.sql("a", "b AS c", where="a > 1") == SqlStep(("a", "b AS c"), "a > 1")
    assert ms.sql(where="a > 1") == SqlStep((), "a > 1")


def test_wrapped_functions_know_where_they_were_written() -> None:
    assert ms.arrow(takes_one).place == line_of(takes_one)
    assert ms.dataframe(takes_one).place == line_of(takes_one)


@pytest.mark.parametrize("wrap", [ms.arrow, ms.dataframe])
@pytest.mark.parametrize("given", ["takes_one", 7, None, ms.sql("a"), ms.arrow(takes_one)])
def test_a_wrapper_of_what_cannot_be_called_is_refused(wrap: Any, given: object) -> None:
    with pytest.raises(WorkflowError, match="cannot be called; pass a function") as caught:
        wrap(given)

    assert caught.value.place == line_of_call(caught)


def test_a_long_value_is_cut_short_in_the_message() -> None:
    with pytest.raises(WorkflowError) as caught:
        ms.arrow(list(range(100_000)))  # type: ignore[arg-type]

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", [7, None, b"a", ["a", "b"], "", "  "])
def test_sql_takes_non_empty_strings_only(text: Any) -> None:
    with pytest.raises(WorkflowError, match="each expression as a non-empty string") as caught:
        ms.sql("a", text)

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("where", [7, "", True])
def test_the_condition_of_sql_is_a_non_empty_string(where: Any) -> None:
    with pytest.raises(WorkflowError, match="non-empty string") as caught:
        ms.sql("a", where=where)

    assert caught.value.place == line_of_call(caught)


def test_sql_needs_an_expression_or_a_condition() -> None:
    with pytest.raises(WorkflowError, match="at least one expression") as caught:
        ms.sql()

    assert caught.value.place == line_of_call(caught)


def test_a_dataframe_function_takes_the_frame_and_nothing_else() -> None:
    with pytest.raises(WorkflowError, match=r"1 positional argument: \(frame\)") as caught:
        ms.dataframe(takes_two)

    assert caught.value.place == line_of(takes_two)


# -- the user's line -----------------------------------------------------------------------


def test_the_caller_is_the_line_that_calls_into_millstream() -> None:
    here = caller()

    assert here.file == __file__
    assert "here = caller()" in Path(__file__).read_text().splitlines()[here.line - 1]


def test_a_module_whose_name_only_begins_like_ours_is_the_users() -> None:
    code = compile("\n\nfound = caller()", "users_script.py", "exec")
    scope: dict[str, Any] = {"__name__": "millstream_reports", "caller": caller}
    exec(code, scope)

    assert scope["found"] == Place("users_script.py", 3)


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (takes_one, takes_one),
        (functools.partial(functools.partial(takes_two, 1), 2), takes_two),
        (gives_a_second(takes_two), takes_two),
        (functools.partial(gives_a_second(takes_two)), takes_two),
        (gives_a_second(functools.partial(takes_two)), takes_two),
        (functools.lru_cache(takes_one), takes_one),
        (Holder().method, Holder.method),
        (Holder(), Holder.__call__),
        (functools.partial(Holder()), Holder.__call__),
    ],
)
def test_a_place_is_found_behind_partials_wrappers_methods_and_objects(
    function: object, written: Callable[..., Any]
) -> None:
    assert place_of(function) == line_of(written)


@pytest.mark.parametrize("function", [len, str, Holder, Color, None, "text"])
def test_classes_and_what_was_not_written_in_python_have_no_place(function: object) -> None:
    assert place_of(function) is None


def test_functions_are_named_as_the_user_wrote_them() -> None:
    assert name_of(takes_one) == "takes_one"
    assert name_of(functools.partial(takes_one)) == "takes_one"
    assert name_of(Holder().method) == "Holder.method"
    assert name_of(Holder()) == "Holder"
    assert name_of(len) == "len"


# -- arguments -----------------------------------------------------------------------------


def keyword_only(record: Any, *, extra: Any) -> Any:
    return record, extra


@pytest.mark.parametrize(
    "function",
    [
        takes_one,
        lambda *records: None,
        lambda record, extra=1: None,
        functools.partial(takes_two, "first"),
        gives_a_second(takes_two),
        passes_on(takes_one),
        Holder().method,
        Holder(),
        len,
        str,
        dict,
    ],
)
def test_what_can_be_called_with_the_arguments_is_accepted(function: Any) -> None:
    check_arguments(function, 1, "map", "(record)")


@pytest.mark.parametrize(
    "function",
    [
        takes_two,
        lambda: None,
        keyword_only,
        functools.partial(takes_one, "first"),
        functools.lru_cache(takes_two),
        Holder.method,
    ],
)
def test_what_cannot_be_called_with_the_arguments_is_refused(function: Any) -> None:
    with pytest.raises(WorkflowError, match=r"cannot be called as \(record\)") as caught:
        check_arguments(function, 1, "map", "(record)")

    assert caught.value.place == place_of(function)
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_the_message_shows_the_signature_and_what_is_expected() -> None:
    with pytest.raises(WorkflowError) as caught:
        check_arguments(lambda value: value, 0, "zero", "()")

    assert "<lambda>(value), cannot be called as ()" in caught.value.what
    assert caught.value.fix == "give it 0 positional arguments: ()"


def test_a_function_of_a_library_is_blamed_on_the_line_that_hands_it_over() -> None:
    with pytest.raises(WorkflowError) as caught:
        ms.dataframe(json.dump)

    assert caught.value.place == line_of_call(caught)


# -- pickling ------------------------------------------------------------------------------


def test_functions_classes_and_objects_of_the_user_can_be_shipped() -> None:
    factor = 3
    for function in (takes_one, lambda x: x * factor, Holder(), Holder().method, Color, len):
        check_picklable(function, "map")


def test_a_function_that_holds_a_lock_is_refused_with_its_own_line() -> None:
    lock = threading.Lock()

    def locked(record: Any) -> Any:
        with lock:
            return record

    with pytest.raises(WorkflowError, match="cannot be pickled") as caught:
        check_picklable(locked, "map")

    assert caught.value.place == line_of(locked)
    assert "locked" in caught.value.what
    assert "lock" in caught.value.what
    assert "inside the function" in caught.value.fix


def test_a_function_that_holds_an_open_file_is_refused_with_its_own_line(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:

        def logged(record: Any) -> Any:
            log.write(str(record))
            return record

        with pytest.raises(WorkflowError, match="cannot be pickled") as caught:
            check_picklable(logged, "map")

    assert caught.value.place == line_of(logged)


# -- errors --------------------------------------------------------------------------------


def test_an_error_begins_with_the_place_and_ends_with_the_fix() -> None:
    error = WorkflowError("it is wrong", "change it", Place("script.py", 7))

    assert str(error) == "script.py:7: it is wrong; change it"
    assert str(WorkflowError("it is wrong", "change it")) == "it is wrong; change it"


def test_an_error_survives_pickling() -> None:
    error = WorkflowError("it is wrong", "change it", Place("script.py", 7))

    again = pickle.loads(pickle.dumps(error))

    assert (again.what, again.fix, again.place) == (error.what, error.fix, error.place)
    assert str(again) == str(error)
