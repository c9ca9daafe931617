"""How long servers are silent: a process of its own for each asks it all the time.

A wait is a pause of the server as far as the server worked meanwhile, or was idle. Time in which
it, or who asks, stood in line for a processor that other processes had is left out: that says how
busy the machine is. The kernel counts both, for every thread.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.wire.flight_net import FlightNet
from millstream.wire.request import Request

_EVERY = 0.002
_LONG = 0.02
_CPU_CLOCK = 2


@dataclass(frozen=True)
class Target:
    """A server that is asked: where it listens, and its process."""

    address: str
    pid: int


@dataclass
class Waits:
    """The longest pauses in seconds by what was asked, and ``slow``, the long ones with their time.

    ``walls`` are the longest waits as the clock on the wall shows them.
    """

    longest: dict[str, float] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)
    slow: list[tuple[float, str, float]] = field(default_factory=list)
    answers: int = 0

    def add(self, what: str, at: float, wall: float, pause: float) -> None:
        """Count an answer."""
        self.answers += 1
        self.longest[what] = max(self.longest.get(what, 0.0), pause)
        self.walls[what] = max(self.walls.get(what, 0.0), wall)
        if pause > _LONG:
            self.slow.append((at, what, pause))


Queued = Mapping[str, float]
"""How long each thread of a process has waited for a processor."""


@dataclass(frozen=True)
class Reading:
    """What clocks show: the wall, the server's work, and time in line of the server and of ours."""

    wall: float
    worked: float
    queued: Queued
    own: Queued

    @classmethod
    def of(cls, pid: int) -> Reading:
        """Read the clocks of a server's process, and of this one."""
        own, queued = _queued("self"), _queued(str(pid))
        worked = time.clock_gettime((~pid << 3) | _CPU_CLOCK)
        return cls(time.monotonic(), worked, queued, own)


def _queued(pid: str) -> Queued:
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            schedstat = Path("/proc", pid, "task", task, "schedstat").read_text()
            found[task] = int(schedstat.split()[1]) / 1e9
    return found


def _more(before: Queued, after: Queued) -> float:
    return sum(seconds - before.get(task, 0.0) for task, seconds in after.items())


def pause_between(before: Reading, after: Reading) -> float:
    """How much of the time between two readings a server was silent by its own doing.

    Threads stand in line side by side, so that what they waited together may be more than the
    server lost by it: what it worked counts in any case.
    """
    wall = max(0.0, after.wall - before.wall - _more(before.own, after.own))
    idle = wall - _more(before.queued, after.queued)
    return min(wall, max(after.worked - before.worked, idle))


@contextmanager
def processor_for(target: Target, others: Sequence[Target]) -> Iterator[None]:
    """Give a server a processor that neither other servers nor this process and its children use.

    Without it, a wait says how busy the machine is.
    """
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        yield
        return
    own, rest = {min(every)}, every - {min(every)}
    for pid, processors in [(target.pid, own), *((o.pid, rest) for o in others), (0, rest)]:
        _pin(pid, processors)
    try:
        yield
    finally:
        _pin(0, every)


def _pin(pid: int, processors: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid or 'self'}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), processors)


Probes = Sequence[tuple[str, Request[Any]]]
"""Requests, each with the name under which its waits are counted."""


def probe(target: Target, secret: bytes, probes: Probes, pipe: Connection) -> None:
    """Send requests to a server all the time, until the pipe says that it is enough."""
    net, waits, rng = FlightNet(secret), Waits(), random.Random(target.address)
    names = sorted({name for name, _ in probes})
    requests = {name: [request for other, request in probes if other == name] for name in names}
    net.call(target.address, requests[names[0]][0])
    pipe.send(None)
    while not pipe.poll(_EVERY):
        for name in names:
            before = Reading.of(target.pid)
            what = name
            try:
                net.call(target.address, rng.choice(requests[name]))
            except ms.MillstreamError as problem:
                what = f"{name}: {type(problem).__name__}"
            after = Reading.of(target.pid)
            waits.add(what, before.wall, after.wall - before.wall, pause_between(before, after))
    pipe.send(waits)


@contextmanager
def probed(targets: Sequence[Target], secret: bytes, probes: Probes) -> Iterator[list[Waits]]:
    """Probe servers meanwhile with these requests; the waits are there afterwards."""
    found: list[Waits] = []
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for target in targets:
            ours, theirs = context.Pipe()
            prober = context.Process(
                target=probe, args=(target, secret, probes, theirs), daemon=True
            )
            prober.start()
            stack.callback(prober.join)
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        try:
            yield found
        finally:
            for pipe in pipes:
                pipe.send(None)
            found.extend(pipe.recv() for pipe in pipes)
