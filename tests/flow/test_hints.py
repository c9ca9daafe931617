from __future__ import annotations

import collections.abc
import datetime as dt
import decimal
import enum
import functools
import typing
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, Optional, Protocol

import pyarrow as pa
import pytest

from millstream.errors import Place, WorkflowError
from millstream.flow import hints

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

HERE = Place("script.py", 7)

Word = NewType("Word", str)
RareWord = NewType("RareWord", Word)


class Custom:
    pass


class Suit(str, enum.Enum):  # noqa: UP042 -- as users have written it for years
    HEARTS = "h"


class Point(NamedTuple):
    x: int
    y: int


class Named(Protocol):
    name: str


def pair_struct(*types: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(f"_{at}", type) for at, type in enumerate(types, 1)])


# -- annotations to Arrow types ------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, pa.string()),
        (bytes, pa.binary()),
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (dt.date, pa.date32()),
        (decimal.Decimal, pa.decimal128(38, 18)),
        (pa.int32(), pa.int32()),
        (list[int], pa.list_(pa.int64())),
        (list[list[str]], pa.list_(pa.list_(pa.string()))),
        (typing.List[float], pa.list_(pa.float64())),  # noqa: UP006
        (Optional[int], pa.int64()),  # noqa: UP045
        (int | None, pa.int64()),
        (None | list[str | None], pa.list_(pa.string())),
        (Word, pa.string()),
        (RareWord, pa.string()),
    ],
)
def test_an_annotation_becomes_an_arrow_type(hint: object, expected: pa.DataType) -> None:
    assert hints.arrow_type(hint) == expected


@pytest.mark.parametrize(
    "hint",
    [
        dt.datetime,  # aware or naive: only the data can tell
        int | str,
        int | str | None,
        list,
        list[Any],
        dict[str, int],
        tuple[str, int],
        Any,
        object,
        Custom,
        None,
        "str",
        ["str"],
        typing.Literal["a"],
    ],
)
def test_an_annotation_that_fixes_no_arrow_type_is_left_to_the_data(hint: object) -> None:
    assert hints.arrow_type(hint) is None


# -- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, pa.string()),
        (int, pa.int64()),
        (bool, pa.bool_()),
        (dt.date, pa.date32()),
        (type(None), pa.null()),
        (int | None, pa.int64()),
        (Word, pa.string()),
        (tuple[str, int], pair_struct(pa.string(), pa.int64())),
        (tuple[str, int] | None, pair_struct(pa.string(), pa.int64())),
        (
            tuple[str, tuple[int, float | None]],
            pair_struct(pa.string(), pair_struct(pa.int64(), pa.float64())),
        ),
        (pa.string(), pa.string()),
        (pa.int32(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.timestamp("ns", "Europe/Paris"), pa.timestamp("us", "UTC")),
    ],
)
def test_a_key_type_is_given_in_its_canonical_form(hint: object, expected: pa.DataType) -> None:
    assert hints.key_type(hint, "the map", HERE) == expected


@pytest.mark.parametrize(
    "hint",
    [
        None,
        Any,
        object,
        dt.datetime,
        tuple,
        tuple[str, ...],
        tuple[str, dt.datetime],
        tuple[str, Any],
        str | int,
        Suit,
        enum.IntEnum,
        Point,
        Hashable,
        typing.Hashable,
        Sequence[str],
        Named,
        typing.Literal["a", "b"],
        typing.TypeVar("K"),
    ],
)
def test_a_key_that_may_be_allowed_is_left_to_the_data(hint: object) -> None:
    assert hints.key_type(hint, "the map", HERE) is None


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (list, "list"),
        (list[str], r"list\[str\]"),
        (typing.List[str], r"typing\.List\[str\]"),  # noqa: UP006
        (list[str] | None, r"list\[str\]"),
        (dict, "dict"),
        (dict[str, int], r"dict\[str, int\]"),
        (Mapping[str, int], "Mapping"),
        (set[int], r"set\[int\]"),
        (frozenset, "frozenset"),
        (bytearray, "bytearray"),
        (complex, "complex"),
        (decimal.Decimal, "Decimal"),
        (Custom, "Custom"),
        (Optional[Custom], "Custom"),  # noqa: UP045
        (tuple[str, Custom], "Custom"),
        (tuple[str, list[int]], r"list\[int\]"),
        (NewType("Bag", list), "list"),
        (pa.list_(pa.string()), "list<item: string>"),
        (pa.decimal128(10, 2), "decimal128"),
        (pa.struct([("a", pa.map_(pa.string(), pa.int64()))]), "struct"),
    ],
)
def test_what_can_never_be_a_key_is_refused_by_name(hint: object, shown: str) -> None:
    with pytest.raises(WorkflowError, match=f"the map gives keys of type .*{shown}") as caught:
        hints.key_type(hint, "the map", HERE)

    assert caught.value.place == HERE
    assert caught.value.fix == f"use one of {hints.ALLOWED_KEYS}"


@pytest.mark.parametrize(
    "declared", ["str", "string", ["str"], ("a", "b"), (str, int), 7, len, {"key": str}]
)
def test_a_declared_key_type_must_be_a_type(declared: object) -> None:
    with pytest.raises(WorkflowError, match="not a key type"):
        hints.declared_key_type(declared, "key_type=", HERE)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (str, pa.string()),
        (tuple[str, int], pair_struct(pa.string(), pa.int64())),
        (int | None, pa.int64()),
        (Word, pa.string()),
        (pa.int16(), pa.int64()),
        (dt.datetime, None),
        (Any, None),
    ],
)
def test_a_declared_key_type_is_read_like_an_annotation(declared: object, expected: object) -> None:
    assert hints.declared_key_type(declared, "key_type=", HERE) == expected


# -- what functions give -------------------------------------------------------------------
# The annotations of this file are strings, because of its first import.


def as_iterator(line: str) -> Iterator[tuple[str, int]]:
    yield line, 1


def as_iterable(line: str) -> Iterable[tuple[str, int]]:
    return [(line, 1)]


def as_generator(line: str) -> Generator[tuple[str, int], None, None]:
    yield line, 1


def as_list(line: str) -> list[tuple[str, int]]:
    return [(line, 1)]


def as_sequence(line: str) -> Sequence[tuple[str, int]]:
    return [(line, 1)]


def as_old_iterator(line: str) -> typing.Iterator[tuple[str, int]]:
    yield line, 1


def as_string(line: str) -> "Iterator[tuple[str, int]]":  # noqa: UP037
    yield line, 1


def with_missing_argument(line: Missing) -> Iterator[tuple[str, int]]:
    yield line, 1


def with_missing_result(line: str) -> Iterator[tuple[Missing, int]]:
    yield line, 1


def without_annotation(line):  # type: ignore[no-untyped-def]
    yield line, 1


def nothing(line: str) -> None: ...


class Splitter:
    def split(self, line: str) -> Iterator[tuple[str, int]]:
        yield line, 1

    def __call__(self, line: str) -> Iterator[tuple[str, int]]:
        yield line, 1


@dataclass
class SplitterWithFields:
    separator: str

    def __call__(self, line: str) -> Iterator[tuple[str, int]]:
        yield line, 1


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        as_iterator,
        as_iterable,
        as_generator,
        as_list,
        as_sequence,
        as_old_iterator,
        as_string,
        with_missing_argument,
        Splitter().split,
        Splitter(),
        SplitterWithFields(" "),
        functools.partial(as_iterator, "line"),
        functools.partial(Splitter()),
        logged(as_iterator),
        functools.lru_cache(as_list),
    ],
)
def test_the_items_of_a_function_are_read_from_its_annotation(function: object) -> None:
    assert hints.yielded(function) == tuple[str, int]


def test_annotations_that_are_no_strings_are_read_as_well() -> None:
    def split(line: str) -> Any:
        yield line, 1

    split.__annotations__ = {"line": str, "return": collections.abc.Iterator[tuple[str, int]]}

    assert hints.yielded(split) == tuple[str, int]


@pytest.mark.parametrize(
    "function",
    [with_missing_result, without_annotation, nothing, len, str, Custom, Custom(), None, 7],
)
def test_a_missing_or_unresolvable_annotation_is_ignored(function: object) -> None:
    assert hints.yielded(function) is None


def test_a_local_class_in_an_annotation_is_ignored() -> None:
    class Local:
        pass

    def split(line: str) -> Iterator[tuple[Local, int]]:
        yield Local(), 1

    assert hints.yielded(split) is None


def test_what_a_function_returns_is_its_annotation_as_a_whole() -> None:
    assert hints.returned(as_list) == list[tuple[str, int]]
    assert hints.returned(nothing) is type(None)
    assert hints.returned(without_annotation) is None


def test_a_pair_is_a_key_and_a_value_with_or_without_a_timestamp() -> None:
    assert hints.pair_types(tuple[str, int]) == (str, int)
    assert hints.pair_types(tuple[str, int, dt.datetime]) == (str, int)


@pytest.mark.parametrize("item", [None, str, tuple, tuple[str], tuple[str, ...], list[str]])
def test_other_items_are_no_pairs(item: object) -> None:
    assert hints.pair_types(item) == (None, None)


# -- records and declared outputs ----------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (tuple[str, int], {"key": pa.string(), "value": pa.int64()}),
        (tuple[str, int | None], {"key": pa.string(), "value": pa.int64()}),
        (tuple[str, list[float]], {"key": pa.string(), "value": pa.list_(pa.float64())}),
        (tuple[str, int, bool], {"_1": pa.string(), "_2": pa.int64(), "_3": pa.bool_()}),
        (tuple[str], {"_1": pa.string()}),
        (str, {"value": pa.string()}),
        (list[str], {"value": pa.list_(pa.string())}),
    ],
)
def test_records_have_the_columns_of_their_annotation(
    item: object, expected: dict[str, pa.DataType]
) -> None:
    assert hints.record_schema(item) == pa.schema(expected)


@pytest.mark.parametrize(
    "item",
    [
        None,
        Any,
        dict[str, int],
        Custom,
        tuple,
        tuple[()],
        tuple[str, ...],
        tuple[str, Any],
        tuple[str, dt.datetime],
        type(None),
    ],
)
def test_records_with_a_column_of_unknown_type_have_no_schema(item: object) -> None:
    assert hints.record_schema(item) is None


def test_an_output_is_declared_by_python_or_arrow_types() -> None:
    declared = {
        "word": str,
        "n": pa.int32(),
        "at": dt.datetime,
        "tags": list[str],
        "p": float | None,
        "w": Word,
    }

    assert hints.declared_schema(declared, HERE) == pa.schema(
        {
            "word": pa.string(),
            "n": pa.int32(),
            "at": pa.timestamp("us", "UTC"),
            "tags": pa.list_(pa.string()),
            "p": pa.float64(),
            "w": pa.string(),
        }
    )


def test_an_output_declared_as_a_schema_is_kept() -> None:
    schema = pa.schema({"n": pa.int8()})

    assert hints.declared_schema(schema, HERE) is schema


@pytest.mark.parametrize(
    "declared",
    [
        {"word": "str"},
        {"word": ["str"]},
        {"word": {}},
        {"word": Custom},
        {"word": Any},
        {"word": None},
        {7: str},
    ],
)
def test_a_declared_column_is_a_name_and_a_type(declared: dict[Any, Any]) -> None:
    with pytest.raises(WorkflowError, match="not a column name and a type; use Python") as caught:
        hints.declared_schema(declared, HERE)

    assert caught.value.place == HERE


@pytest.mark.parametrize("declared", [{}, str, ["word"], "word string", 7])
def test_an_output_is_a_schema_or_a_mapping(declared: object) -> None:
    with pytest.raises(WorkflowError, match=r"give a pyarrow\.Schema or a mapping") as caught:
        hints.declared_schema(declared, HERE)

    assert caught.value.place == HERE
