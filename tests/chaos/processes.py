"""The processes of a run, as ``/proc`` shows them: nodes, executors, Spark's Python workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    found = _stat(pid)
    return found is not None and found[0] != "Z"


def gone_within(pids: Iterable[int], seconds: float) -> list[int]:
    """Wait for processes to go; the ones that did not."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_running(pid)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def send(pids: Iterable[int], what: signal.Signals) -> None:
    """Signal processes, one right after the other; ignores those that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def executor_of(node: int) -> int:
    """The Java process that a node watches: its executor."""
    return int(Path(f"/proc/{node}/cmdline").read_bytes().split(b"\0")[-2])


def workers_of(executor: int) -> list[int]:
    """The Python workers of an executor: children of its daemon, nodes not among them."""
    parents = _parents()
    daemons = {
        pid for pid, parent in parents.items() if parent == executor and b"daemon" in _command(pid)
    }
    return sorted(
        pid for pid, parent in parents.items() if parent in daemons and b"daemon" in _command(pid)
    )


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    parents = _parents()
    below: list[int] = []
    last = {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last}
        below += sorted(last)
    return below


def _parents() -> dict[int, int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: found[1] for pid in pids if (found := _stat(pid)) is not None}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = text[text.rindex(")") + 2 :].split()[:2]  # behind the name, in brackets
    return state, int(parent)


def marked(mark: str) -> list[int]:
    """All processes, but zombies, with a text in their environment: one driver's, and below."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return sorted(pid for pid in found if is_running(pid))
