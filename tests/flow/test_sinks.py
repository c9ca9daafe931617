from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError, WorkflowError
from millstream.flow import write


def takes_one(rows: list[Any]) -> None: ...


def takes_two(rows: list[Any], epoch: int) -> None: ...


class Recorder:
    def method(self, rows: list[Any], epoch: int) -> None: ...

    def __call__(self, rows: list[Any]) -> None: ...


@pytest.mark.parametrize("make", [write.callback, write.foreach_batch])
@pytest.mark.parametrize(
    "function",
    [
        takes_two,
        Recorder().method,
        lambda *both: None,
        lambda rows, epoch, extra=1: None,
        functools.partial(lambda tag, rows, epoch: None, "tag"),
        print,
        dict.update,
    ],
)
def test_what_takes_two_arguments_is_accepted(make: Any, function: Any) -> None:
    assert make(function).function is function


@pytest.mark.parametrize("make", [write.callback, write.foreach_batch])
@pytest.mark.parametrize(
    "function", [takes_one, lambda: None, Recorder(), functools.partial(takes_two, [], epoch=1)]
)
def test_what_does_not_take_two_arguments_is_refused(make: Any, function: Any) -> None:
    with pytest.raises(WorkflowError, match="epoch"):
        make(function)


def test_the_error_names_the_file_and_line_of_the_function() -> None:
    with pytest.raises(WorkflowError) as caught:
        write.callback(takes_one)  # type: ignore[arg-type]

    assert caught.value.place is not None
    assert caught.value.place.file == __file__
    assert caught.value.place.line == inspect.getsourcelines(takes_one)[1]


@pytest.mark.parametrize("make", [write.callback, write.foreach_batch])
def test_what_cannot_be_called_is_refused_with_the_line_of_the_call(make: Any) -> None:
    with pytest.raises(WorkflowError, match="cannot be called") as caught:
        make("print")

    assert caught.value.place is not None
    assert caught.value.place.file == __file__


@pytest.mark.parametrize("rows", [0, -1, 2.5, True])
def test_a_console_shows_at_least_one_row(rows: object) -> None:
    with pytest.raises(ConfigError, match="rows"):
        write.console(rows=rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [write.parquet, write.json, write.csv])
def test_a_path_object_is_kept_as_text(make: Any) -> None:
    assert make(Path("some") / "folder").path == "some/folder"


@pytest.mark.parametrize("make", [write.parquet, write.json, write.csv])
@pytest.mark.parametrize("path", ["", None, 7])
def test_what_is_not_a_path_is_refused(make: Any, path: object) -> None:
    with pytest.raises(ConfigError, match="path"):
        make(path)


def test_csv_has_a_header_by_default() -> None:
    assert write.csv("out").header
    assert not write.csv("out", header=False).header
