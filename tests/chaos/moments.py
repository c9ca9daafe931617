"""Moments in the life of a driver: points of the protocol, and what happens to it there.

The points are found by wrapping the functions of Millstream in the driver program's own process;
the code that runs knows nothing of it.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import SparkContext

from millstream.node.machine import Durability
from tests.chaos.processes import marked, send

Fault = Literal["kill", "kill driver", "kill jvm", "stop driver", "stop all"]
"""To the driver's Python process, to its JVM, or to both and, if stopped, to all nodes."""


@dataclass(frozen=True)
class Moment:
    """A fault, some seconds after a point has been reached for the n-th time in a process."""

    point: str
    turn: int
    delay: float
    fault: Fault

    def __str__(self) -> str:
        later = f" + {self.delay:.2f} s" if self.delay else ""
        return f"{self.fault} at {self.point!r} {self.turn}{later}"


@dataclass(frozen=True)
class Point:
    """Just before or after a function; ``delay`` is the longest to wait for the middle of it."""

    function: str
    when: Literal["before", "after"]
    delay: float = 0.0


_CHECKPOINT = "millstream.spark.checkpoint"
_SERVICE = "millstream.coordinator.service:Coordinator"
_INTERVALS = "millstream.coordinator.interval_commits:IntervalCommits"
_JOURNAL = "millstream.coordinator.journal"
_CHAIN = "millstream.checkpoints.chain:Chain"
_SINK = "millstream.spark.sink_writers:FileWriter"
_ENGINE = "millstream.spark.engine:Engine"
_QUERY_LOGS = "millstream.spark.query_log_files:QueryLogs"

_EPOCH = {
    "admitted": Point(f"{_SERVICE}.admit", "after"),
    "staging": Point(f"{_SINK}.stage", "before", 0.4),
    "staged": Point(f"{_SINK}.stage", "after"),
    "received": Point(f"{_SERVICE}.collect_receipts", "after"),
    "committing": Point(f"{_CHAIN}.commit", "before"),
    "committed": Point(f"{_CHAIN}.commit", "after"),
    "publishing": Point(f"{_SINK}.publish", "before"),
    "published": Point(f"{_SINK}.publish", "after"),
    "sealing": Point(f"{_SERVICE}.seal", "before"),
    "sealed": Point(f"{_SERVICE}.seal", "after", 0.1),
    "returning": Point(f"{_ENGINE}._run", "after"),
    "returned": Point(f"{_ENGINE}.__call__", "after", 0.1),
    "collecting garbage": Point(f"{_JOURNAL}:remove", "before"),
    "deleted links": Point(f"{_CHAIN}.delete_before", "after"),
    "any time": Point(f"{_SERVICE}.admit", "before", 3.0),
}
_INTERVAL = {
    **{name: point for name, point in _EPOCH.items() if name not in ("sealing", "committing")},
    "persisting": Point(f"{_INTERVALS}._persist_on_nodes", "before", 0.1),
    "persisted": Point(f"{_JOURNAL}:Journal.commit", "before"),
}
RESTART = {
    "claiming": Point(f"{_CHAIN}.claim", "before"),
    "claimed": Point(f"{_CHAIN}.claim", "after"),
    "deriving": Point("millstream.spark.folder:Folder.write", "before"),
    "derived": Point(f"{_QUERY_LOGS}.derive", "after"),
    "in line": Point(f"{_CHECKPOINT}:reconcile_sinks", "after"),
    "launched": Point("millstream.spark.startup:start_nodes", "after"),
    "restoring": Point(f"{_SERVICE}.await_restored", "before", 0.1),
    "restored": Point(f"{_SERVICE}.await_restored", "after"),
    "any time from claim": Point(f"{_CHAIN}.claim", "before", 3.0),
}


def points(durability: Durability) -> dict[str, Point]:
    """The points that a run passes in every epoch, or in every checkpoint."""
    return _EPOCH if durability == "epoch" else _INTERVAL


def arrange(moment: Moment, say: Callable[..., None]) -> None:
    """Arrange a fault; ``say`` is called just before it."""
    point = {**_EPOCH, **_INTERVAL, **RESTART}[moment.point]
    turns = iter(range(1, moment.turn + 1))

    def reached() -> None:
        if next(turns, None) == moment.turn:
            if moment.delay:
                timer = threading.Timer(moment.delay, inject, (moment.fault, say))
                timer.daemon = True
                timer.start()
            else:
                inject(moment.fault, say)

    wrap(point.function, **{point.when: reached})


def wrap(
    place: str,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Do something around a function of ``module:Class.name`` or ``module:name``."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        before()
        result = function(*arguments, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def inject(fault: Fault, say: Callable[..., None]) -> None:
    """Do it to this very process, its JVM or its nodes; ``say`` is called just before."""
    say(moment=fault)
    me, jvm = os.getpid(), _jvm()
    match fault:
        case "kill":
            send([jvm, me], signal.SIGKILL)
        case "kill driver":
            send([me], signal.SIGKILL)
        case "kill jvm":
            send([jvm], signal.SIGKILL)
        case "stop driver":
            send([me], signal.SIGSTOP)
        case "stop all":
            others = [pid for pid in marked(os.environ[MARK]) if pid != me]
            send([*others, me], signal.SIGSTOP)


MARK = "MILLSTREAM_CHAOS"
"""The variable in the environment that all processes of a driver inherit from it."""


def _jvm() -> int:
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)
