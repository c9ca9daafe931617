"""What a simulated world consists of: processes, their tasks, and the threads that run them."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable


class Crashed(BaseException):
    """Raised in the tasks of a crashed process; not to be caught."""


class StalledError(Exception):
    """A simulated run did not end: its time was over, or every task waits for another."""


class Process:
    """A simulated process: what crashes, pauses and resumes as one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.parked: list[tuple[Task | None, int, Callable[[], None] | None]] = []


class Task:
    """One thread of a simulated process."""

    __slots__ = ("baton", "function", "name", "process", "serial", "ticket", "waits")

    def __init__(
        self, process: Process, name: str, serial: int, function: Callable[[], None]
    ) -> None:
        self.process, self.name, self.serial, self.function = process, name, serial, function
        self.baton: threading.Lock | None = None  # of the thread that runs it, once started
        self.ticket = 0  # counts its waits: what would wake it from an earlier one is void
        self.waits = "to start"

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Worker:
    """A pooled thread; it idles on its baton."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.task: Task | None = None
        self.thread: threading.Thread | None = None


def stay_on_one_core() -> None:
    """Pin this thread to the processor of the others: passing the baton is four times cheaper."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame)[-6:])}"
        for ident, frame in sys._current_frames().items()
    )
