"""The process of an engine: takes tasks from standard input until that ends.

``python -m benchmarks.peers.worker ENGINE`` with the Python of the engine's environment. It stays
for all rounds, so that what the engine compiles while it runs is compiled once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import IO, Protocol

from benchmarks.peers.protocol import Failed, Form, Ran, Ready, Task, line_of, message_of


class EngineModule(Protocol):
    """What the module of an engine has: forms of the word count by name, and what it runs."""

    FORMS: Mapping[str, Form]
    PACKAGES: tuple[str, ...]


def serve(engine: EngineModule, asked: IO[str], answers: IO[str]) -> None:
    """Run one task after the other."""
    versions = {package: version(package) for package in engine.PACKAGES}
    versions["python"] = sys.version.split()[0]
    _send(answers, Ready(versions))
    for line in asked:
        task = message_of(line)
        assert isinstance(task, Task)
        try:
            answer: Ran | Failed = engine.FORMS[task.form](task)
        except Exception:
            answer = Failed(traceback.format_exc())
        _send(answers, answer)


def _send(answers: IO[str], message: Ran | Failed | Ready) -> None:
    answers.write(line_of(message))
    answers.flush()


def main() -> None:
    # Engines print; the answers keep the descriptor that was standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)
    engine: EngineModule = import_module(f"benchmarks.peers.{sys.argv[1]}")
    serve(engine, sys.stdin, answers)


if __name__ == "__main__":
    main()
