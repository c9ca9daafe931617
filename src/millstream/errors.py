"""The root of Millstream's errors, and those that all packages share.

One root, facts as fields, safe to pickle (the arguments of ``__init__`` are handed to
``Exception`` unchanged), and a text that says what to do. ``docs/errors.md`` lists those that
users can meet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class MillstreamError(Exception):
    """The root of all errors of Millstream."""


class DataError(MillstreamError):
    """A function or the data of a user made an epoch fail; ``epoch`` is its number, once known."""

    epoch: int | None = None


class ConfigError(MillstreamError):
    """An option has a value that is not allowed."""


class WorkflowError(MillstreamError):
    """A workflow is built in a way that cannot run."""

    def __init__(self, what: str, fix: str, place: Place | None = None) -> None:
        super().__init__(what, fix, place)
        self.what, self.fix, self.place = what, fix, place

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.what}; {self.fix}"
