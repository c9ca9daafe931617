"""What the harness asks of an engine's process, and what that answers: a line of JSON each.

Engines run in environments of their own, so this module, and the modules of engines that import it,
know nothing but the standard library and their engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run of one form of a workload.

    The input is the files of ``folder`` in the order of their names. ``work`` is a new folder for
    checkpoints. An engine that checkpoints by the clock does so every ``interval`` seconds. If
    ``answer`` is not empty, the answer is written to that file; some engines then need a sink that
    they can do without otherwise, and such a run is not timed. Input that is paced is written while
    the task runs, which ends when the last of ``records`` has come, or fails after ``patience``.
    """

    form: str
    folder: str
    files: int
    epochs: int
    work: str
    answer: str = ""
    interval: float = 1.0
    records: int = 0
    patience: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files_per_epoch(self) -> int:
        return self.files // self.epochs

    def paths(self) -> list[str]:
        """The files, in order."""
        return sorted(str(path) for path in Path(self.folder).glob("[!.]*"))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How long a run took in seconds, and when each epoch ended if the engine has epochs.

    Epochs end, in seconds of some clock, when their changes are as durable as the engine makes
    them. For paced input an end is an output, by the clock of the machine, and ``reached`` the last
    record that is in it. ``facts`` are other numbers that the engine reports.
    """

    seconds: float
    ends: list[float] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)


Form = Callable[[Task], Ran]


@dataclass(frozen=True)
class Ready:
    """The first line of an engine's process: the versions that it runs."""

    versions: dict[str, str]


@dataclass(frozen=True)
class Failed:
    """In place of an answer: why there is none."""

    failure: str


def line_of(message: Task | Ran | Ready | Failed) -> str:
    """The message as a line."""
    return json.dumps({type(message).__name__: asdict(message)}) + "\n"


def message_of(line: str) -> Task | Ran | Ready | Failed:
    """The message of a line."""
    [(name, fields)] = json.loads(line).items()
    kinds = {"Task": Task, "Ran": Ran, "Ready": Ready, "Failed": Failed}
    message: Task | Ran | Ready | Failed = kinds[name](**fields)
    return message


def write_counts(file: str, counts: Iterable[tuple[str, int]]) -> None:
    """Write an answer: a key and its count to a line."""
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(f"{key}\t{count}\n" for key, count in counts)
