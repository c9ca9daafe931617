"""Sinks of simulated runs, and a reader who remembers all that was ever in sight."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from millstream.errors import ConfigError
from millstream.sim.network import SimNet, World
from millstream.sim.workload import Outputs

SINK = "sink"


class Sink(Protocol):
    """Where the outputs of an epoch go."""

    def stage(self, epoch: int, attempt: str, outputs: Outputs) -> None:
        """Keep them out of sight."""

    def publish(self, epoch: int, attempt: str) -> None:
        """Bring them into sight; again: nothing."""

    def discard(self, epoch: int, attempt: str) -> None:
        """Drop what was staged."""


class Shown:
    """The sink of a run without a store: it lives as long as the driver."""

    def __init__(self) -> None:
        self._staged: dict[tuple[int, str], Outputs] = {}
        self.published: list[tuple[int, Outputs]] = []

    def stage(self, epoch: int, attempt: str, outputs: Outputs) -> None:
        self._staged[epoch, attempt] = outputs

    def publish(self, epoch: int, attempt: str) -> None:
        self.published.append((epoch, self._staged.pop((epoch, attempt))))

    def discard(self, epoch: int, attempt: str) -> None:
        self._staged.pop((epoch, attempt), None)


class Folder:
    """What a file sink has on disk; it outlives its writers.

    ``problem`` is the first thing that a reader who polls all the time would complain about.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.staged: dict[tuple[int, str], Outputs] = {}
        self.visible: dict[int, Outputs] = {}
        self.problem: str | None = None

    def complain(self, problem: str) -> None:
        self.problem = self.problem or f"I2: {problem}"


class FileSink:
    """One process's writer of a folder: as ``millstream.spark.sinks.FileWriter``, step by step."""

    def __init__(self, folder: Folder, net: SimNet) -> None:
        self._folder = folder
        self._net = net

    def _step(self, what: str) -> None:
        self._folder.world.step(f"sink {what}", self._net.process)
        self._net.sleep(self._folder.world.delay())

    def stage(self, epoch: int, attempt: str, outputs: Outputs) -> None:
        self._step(f"stage {epoch}")
        self._folder.staged[epoch, attempt] = outputs

    def publish(self, epoch: int, attempt: str) -> None:
        folder, staged = self._folder, (epoch, attempt)
        self._step(f"look for {epoch}")
        if epoch not in folder.visible:
            self._step(f"publish {epoch}")
            if staged in folder.staged:
                if epoch in folder.visible:
                    folder.complain(f"epoch {epoch} is in sight twice")
                folder.visible[epoch] = folder.staged.pop(staged)
                folder.world.note(f"epoch {epoch} is in sight, by attempt {attempt}")
            elif epoch not in folder.visible:
                folder.complain(f"epoch {epoch} is committed, but attempt {attempt} is not staged")
        elif staged in folder.staged:
            folder.complain(f"epoch {epoch} was in sight, and attempt {attempt} replaces it")

    def discard(self, epoch: int, attempt: str) -> None:
        self._step(f"discard {epoch}")
        self._folder.staged.pop((epoch, attempt), None)

    def clean(self, keep: Container[tuple[int, str]]) -> None:
        """Drop what was staged, except what is to be kept."""
        self._step("list what is staged")
        for staged in [staged for staged in self._folder.staged if staged not in keep]:
            self._step(f"drop {staged[0]}")
            self._folder.staged.pop(staged, None)

    def shown(self, after: int) -> list[int]:
        """The epochs after one that readers see."""
        self._step("list what is in sight")
        return sorted(epoch for epoch in self._folder.visible if epoch > after)

    def withdraw(self, epochs: Iterable[int]) -> None:
        """Remove epochs."""
        for epoch in sorted(epochs, reverse=True):
            self._step(f"withdraw {epoch}")
            if self._folder.visible.pop(epoch, None) is not None:
                self._folder.complain(f"epoch {epoch} was in sight, and is withdrawn")

    def check_new(self) -> None:
        """Refuse to begin where something is in sight."""
        self._step("check that nothing is in sight")
        if self._folder.visible:
            raise ConfigError(f"epochs {sorted(self._folder.visible)} are in sight already")
