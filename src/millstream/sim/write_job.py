"""Spark's job that writes the rows of a sink: tasks with several attempts, each with its own file.

As with Hadoop's committer, version 2: an attempt writes below ``_temporary``, asks the driver, and
moves its file into place; only one attempt of a task may, until it ends. When every task has a
file the driver removes ``_temporary``, and the job is done. Attempts that it has given up by then
may still be about to open their files, whenever they get to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from millstream.errors import MillstreamError
from millstream.sim.disk import Disk, DiskView, Rows
from millstream.sim.network import SimNet, World

_ATTEMPTS = 12
_SHORTEST_NAP, _LONGEST_NAP = 0.002, 0.1
_LATE = (0.1, 1.0, 5.0, 30.0)


class WriteFailedError(MillstreamError):
    """Spark gave up on a task that wrote to a sink."""


@dataclass(frozen=True)
class TaskPool:
    """Where the tasks of a driver run, and how likely they are killed, doubled or late."""

    world: World
    driver: SimNet
    hosts: Callable[[], list[str]]
    kill: float = 0.0
    speculate: float = 0.0
    late: float = 0.0


class WriteJob:
    """Writes files into one folder."""

    def __init__(self, pool: TaskPool, disk: Disk, folder: str, files: dict[int, Rows]) -> None:
        """``files`` are the rows of each task that has any."""
        self._pool = pool
        self._disk = disk
        self._folder = folder
        self._files = files
        self._may_commit: dict[int, str] = {}
        self._done: set[int] = set()
        self._is_over = False

    def run(self) -> None:
        """Write all files, or raise."""
        driver = self._pool.driver
        try:
            for outcome in driver.gather([partial(self._task, part) for part in self._files]):
                if isinstance(outcome, Exception):
                    raise outcome
        finally:
            self._is_over = True
        DiskView(self._disk, driver).delete(f"{self._folder}/_temporary")

    def _task(self, part: int) -> None:
        pool, world = self._pool, self._pool.world
        for _ in range(_ATTEMPTS):
            together = 2 if world.maybe(pool.speculate) else 1
            names = [self._attempt(part) for _ in range(together)]
            nap, deadline = _SHORTEST_NAP, world.now + 10.0
            while part not in self._done and any(map(world.alive, names)):
                if world.now > deadline and self._may_commit.get(part) not in names:
                    break  # given up for another one
                pool.driver.sleep(nap)
                nap = min(nap * 2, _LONGEST_NAP)
            for name in names:
                if not world.maybe(pool.late):  # else the kill does not reach it
                    world.crash(name)
            if part in self._done:
                return
        raise WriteFailedError(f"task {part} that writes {self._folder} failed {_ATTEMPTS} times")

    def _attempt(self, part: int) -> str:
        """Start an attempt, in a process of its own on some executor."""
        pool, world = self._pool, self._pool.world
        number = world.serial()
        net = world.process(f"writer-{number}@{world.random.choice(pool.hosts())}")
        name = net.process.name
        if world.maybe(pool.kill):
            world.at(world.random.random() * 0.01, partial(world.crash, name))
        wait = world.random.choice(_LATE) if world.maybe(pool.late) else 0.0

        def work() -> None:
            if wait:
                net.sleep(wait)
            self._write(DiskView(self._disk, net), name, part)
            world.at(0.0, partial(world.crash, name))

        net.spawn(work, "writer")
        return name

    def _write(self, disk: DiskView, name: str, part: int) -> None:
        own = f"{self._folder}/_temporary/{name}"
        path = f"{own}/part-{part:05d}"
        disk.write(disk.create(path), self._files[part])
        if self._is_allowed(name, part):
            if disk.rename(path, f"{self._folder}/part-{part:05d}"):
                self._done.add(part)
        else:
            disk.delete(own)

    def _is_allowed(self, name: str, part: int) -> bool:
        """The driver's answer to an attempt that wants to commit; nothing if the driver is dead."""
        world = self._pool.world
        if self._is_over or part in self._done or not world.alive(self._pool.driver.process.name):
            return False
        other = self._may_commit.get(part)
        if other is not None and world.alive(other):
            return other == name
        self._may_commit[part] = name
        return True
