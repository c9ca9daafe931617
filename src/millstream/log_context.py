"""Where a line of the log comes from: its workflow, epoch, job and node.

Every record of the logger ``millstream`` has them as attributes, for formatters and for exporters.
They are determined when a line is logged, and cost nothing otherwise. A thread inherits its context
where it is started; a process with a single run has that for all of its threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial

DRIVER = "driver"
TEXT = (
    "%(asctime)s %(levelname)s %(message)s "
    "[workflow=%(workflow)s epoch=%(epoch)s job=%(job)s node=%(node)s]"
)


@dataclass(frozen=True, kw_only=True)
class LogContext:
    """A process of a run: ``epoch`` returns the one under way, or else the newest committed one."""

    workflow: str
    node: str
    epoch: Callable[[], int]

    def entered(self) -> _Entered:
        """Make it that of the calling thread."""
        return _Entered(self)

    def open(self) -> None:
        """Make it that of all threads without one, as long as no other run is open."""
        _open.append(self)

    def close(self) -> None:
        """Undo ``open``; idempotent."""
        if self in _open:
            _open.remove(self)


class _Entered:
    """A class and not a generator, which takes longer: every request that is served is in one."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: LogContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _context.set(self._context)

    def __exit__(self, *problem: object) -> None:
        _context.reset(self._token)


_context: ContextVar[LogContext | None] = ContextVar("millstream_log_context", default=None)
_job: ContextVar[str] = ContextVar("millstream_log_job", default="")
_open: list[LogContext] = []
_NOWHERE = LogContext(workflow="", node="", epoch=lambda: -1)


@contextmanager
def within_job(name: str) -> Iterator[None]:
    """Let the calling thread work for a job."""
    token = _job.set(name)
    try:
        yield
    finally:
        _job.reset(token)


def inheriting(work: Callable[[], None]) -> Callable[[], None]:
    """What a new thread is to do, in the context of the calling one."""
    return partial(copy_context().run, work)


class ContextFilter(logging.Filter):
    """Adds the attributes ``workflow``, ``epoch``, ``job`` and ``node`` to records.

    What is not known is an empty text; the epoch is −1 before the first.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        context = _context.get() or (_open[0] if len(_open) == 1 else _NOWHERE)
        record.workflow = context.workflow
        record.epoch = context.epoch()
        record.job = _job.get()
        record.node = context.node
        return True


_FILTER = ContextFilter()
logging.getLogger("millstream").addFilter(_FILTER)


def show_context(handler: logging.Handler | None = logging.lastResort) -> None:
    """Let a handler write the context of all lines, also of users' loggers.

    By default the one of programs that configure no logging.
    """
    if handler is not None:
        handler.addFilter(_FILTER)
        handler.setFormatter(logging.Formatter(TEXT))
