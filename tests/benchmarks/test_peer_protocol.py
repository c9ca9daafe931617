"""The harness and an engine's process understand each other."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers.protocol import (
    Failed,
    Ran,
    Ready,
    Task,
    line_of,
    message_of,
    write_counts,
)
from benchmarks.peers.worker import serve

TASK = Task(form="loop", folder="/in", files=4, epochs=2, work="/w", options={"replicas": 0})


@pytest.mark.parametrize(
    "message", [TASK, Ran(seconds=1.5, ends=[1.0, 2.0]), Ready({"a": "1"}), Failed("why\nnot")]
)
def test_a_message_is_one_line_and_survives_it(message: Task | Ran | Ready | Failed) -> None:
    line = line_of(message)

    assert line.count("\n") == 1
    assert message_of(line) == message


def test_a_task_knows_its_files_in_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.txt", ".c.txt", "a.txt"):
        (tmp_path / name).touch()
    task = Task(form="", folder=str(tmp_path), files=2, epochs=1, work="")

    assert [Path(path).name for path in task.paths()] == ["a.txt", "b.txt"]


def test_a_worker_answers_every_task_and_reports_failures() -> None:
    def fail(_: Task) -> Ran:
        raise ValueError("no such thing")

    engine = SimpleNamespace(FORMS={"loop": lambda _: Ran(seconds=2.0), "bad": fail}, PACKAGES=())
    asked = io.StringIO(line_of(replace(TASK, form="bad")) + line_of(TASK))
    answers = io.StringIO()

    serve(engine, asked, answers)

    ready, failed, ran = map(message_of, answers.getvalue().splitlines())
    assert isinstance(ready, Ready)
    assert isinstance(failed, Failed) and "no such thing" in failed.failure
    assert ran == Ran(seconds=2.0)


def test_an_answer_has_a_line_for_every_key(tmp_path: Path) -> None:
    write_counts(str(tmp_path / "answer"), [("mill", 2), ("stream", 1)])

    assert (tmp_path / "answer").read_text() == "mill\t2\nstream\t1\n"
