"""Errors of users' functions and data, with the user's file, line, key or record."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from types import TracebackType
from typing import Any

from millstream.errors import DataError, MillstreamError, Place
from millstream.flow.functions import name_of, place_of
from millstream.flow.row_reducer import users_function
from millstream.state.key_view import KeyView
from millstream.state.timers import TimerError
from millstream.state.values import value_text

_PACKAGE = f"{Path(__file__).parent.parent}/"
_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# An error travels in the trailer of a call, which holds a few thousand bytes.
_TRACE_FRAMES = 10
_ERROR_LENGTH = 500
_RECORD_LENGTH = 300


class UserFunctionError(DataError):
    """A user's function raised an exception, for a key or for a record where one is known."""

    def __init__(
        self,
        role: str,
        function: str,
        place: Place | None,
        error: str,
        key: str | None,
        trace: str,
        record: str | None = None,
    ) -> None:
        super().__init__(role, function, place, error, key, trace, record)
        self.role, self.function, self.place = role, function, place
        self.error, self.key, self.trace, self.record = error, key, trace, record

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        at = f" for key {self.key}" if self.key is not None else ""
        at += f" for record {self.record}" if self.record is not None else ""
        return (
            f"{where}the {self.role}, {self.function}, raised {self.error}{at}; "
            f"{_epoch(self)} was not applied\n{self.trace}"
        ).rstrip()


def _epoch(error: DataError) -> str:
    return "the epoch" if error.epoch is None else f"epoch {error.epoch}"


class RecordError(DataError):
    """A user's function returned a value of the wrong shape or type."""

    def __init__(self, role: str, function: str, place: Place | None, what: str, fix: str) -> None:
        super().__init__(role, function, place, what, fix)
        self.role, self.function, self.place, self.what, self.fix = (
            role,
            function,
            place,
            what,
            fix,
        )

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        name = f", {self.function}," if self.function else ""
        after = "" if self.epoch is None else f"; {_epoch(self)} was not applied"
        return f"{where}the {self.role}{name} {self.what}; {self.fix}{after}"


def record_error(role: str, function: object, what: str, fix: str) -> RecordError:
    """A ``RecordError`` that points at a user's function (None for a built-in one)."""
    function = users_function(function)
    name = name_of(function) if function is not None else ""
    return RecordError(role, name, place_of(function), what, fix)


def user_error(
    role: str,
    function: object,
    problem: BaseException,
    key: str | None = None,
    *,
    record: str | None = None,
) -> UserFunctionError:
    """Wrap an exception of a user's function, with the line that raised it."""
    function = users_function(function)
    frames = _user_frames(problem.__traceback__)
    # The user's line, not that of a library it called.
    of_user = [frame for frame in frames if not _is_library(frame.filename)] or frames
    last = of_user[-1] if of_user else None
    place = place_of(function) if last is None else Place(last.filename, last.lineno or 0)
    trace = "".join(traceback.format_list(frames[-_TRACE_FRAMES:]))
    error = "".join(traceback.format_exception_only(_explained(problem))).strip()
    if len(error) > _ERROR_LENGTH:
        error = error[: _ERROR_LENGTH - 1] + "…"
    return UserFunctionError(role, name_of(function), place, error, key, trace, record)


def _explained(problem: BaseException) -> BaseException:
    """The exception, or a better one where a job without timers uses them."""
    if (
        isinstance(problem, AttributeError)
        and problem.name == "timers"
        and isinstance(problem.obj, dict | KeyView)
    ):
        return TimerError(
            "state.timers is for jobs with on_timer=, and this job has none",
            "give it on_timer=, a function (key, timer, state); jobs with windows have no timers",
        )
    return problem


def _is_library(file: str) -> bool:
    # Modules in Cython have relative file names.
    return file.startswith((*_INSTALLED, "<frozen ")) or file.endswith((".pyx", ".pxi"))


def _user_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return [
        frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_PACKAGE)
    ]


@contextmanager
def calling(role: str, function: object) -> Iterator[None]:
    """Turn any exception of a user's function into a ``UserFunctionError``."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as problem:
        raise user_error(role, function, problem) from problem


@contextmanager
def calling_each(
    role: str, function: object, records: Sequence[Any], parts: Sequence[Any] | None = None
) -> Iterator[Iterator[Any]]:
    """Iterate over records with a user's function; an error shows the current record.

    With ``parts``, the results of the function for each record, iterate over those instead: a
    generator runs only when it is read.
    """
    turn = iter(records if parts is None else parts)
    try:
        yield turn
    except MillstreamError:
        raise
    except Exception as problem:
        # The iterator knows how many are left, so there is no counter per record.
        at = len(records) - length_hint(turn) - 1
        record = value_text(records[at], _RECORD_LENGTH) if 0 <= at < len(records) else None
        raise user_error(role, function, problem, record=record) from problem
