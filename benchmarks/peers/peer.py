"""An engine's process, seen from the harness: it is given tasks, and what it uses is measured."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.entries import ROOT, Engine
from benchmarks.peers.protocol import Failed, Ran, Ready, Task, line_of, message_of
from benchmarks.process_tree import Usage, Watched, marked

_MARK = "MILLSTREAM_BENCHMARK_PEER"
_TAIL = 3_000


@dataclass(frozen=True)
class Run:
    """What an engine reports of a run, and what its processes used."""

    ran: Ran
    usage: Usage


class PeerError(Exception):
    """An engine did not do what it was asked."""


class Peer:
    """A process with an engine, until ``stop``. What it prints goes to ``log``."""

    def __init__(self, engine: Engine, log: Path) -> None:
        self._engine = engine
        self._log = log
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        # An environment of its own must not see the packages of this one.
        inherited = "" if engine.own else os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(ROOT), inherited]))
        with log.open("ab") as printed:
            self._process = subprocess.Popen(
                [engine.python, "-m", "benchmarks.peers.worker", engine.module],
                cwd=ROOT,
                env={**os.environ, **dict(engine.variables), name: value, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                start_new_session=True,
            )
        ready = self._receive(120.0)
        assert isinstance(ready, Ready)
        self.versions = ready.versions

    def run(self, task: Task, timeout: float) -> Run:
        """Run a task, and measure it."""
        assert self._process.stdin is not None
        with Watched(self._mark) as watched:
            self._process.stdin.write(line_of(task).encode())
            self._process.stdin.flush()
            answer = self._receive(timeout)
        assert isinstance(answer, Ran)
        return Run(answer, watched.usage)

    def stop(self) -> None:
        """End the process, and what it has started."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid, _ in marked(self._mark.encode()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _receive(self, timeout: float) -> Ran | Ready:
        out = self._process.stdout
        assert out is not None
        # A line is written at once, and nothing follows it before the next task.
        ready, _, _ = select.select([out], [], [], timeout)
        line = out.readline() if ready else b""
        if not line:
            what = "ended" if ready else f"gave no answer within {timeout:.0f} s"
            raise PeerError(f"{self._engine.module} {what}: {self._tail()}")
        message = message_of(line.decode())
        if isinstance(message, Failed):
            raise PeerError(f"{self._engine.module}: {message.failure}\n{self._tail()}")
        assert isinstance(message, Ran | Ready)
        return message

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:]
