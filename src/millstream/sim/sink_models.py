"""Sinks of simulated runs, and a reader that checks one at every step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Protocol

from millstream.coordinator.sink_folders import SinkFolders, staged_folder
from millstream.coordinator.sink_layout import epoch_of, epochs_in
from millstream.sim.disk import Disk, DiskView, Rows
from millstream.sim.network import SimNet
from millstream.sim.workload import Outputs, in_order
from millstream.sim.write_job import TaskPool, WriteJob

SINK = "sink"
_FILES = 3


class Sink(Protocol):
    """Where the outputs of an epoch go."""

    def stage(self, epoch: int, attempt: str, outputs: Outputs, pool: TaskPool) -> bool:
        """Stage them; return whether there is anything to publish."""

    def publish(self, epoch: int, attempt: str) -> None:
        """Make them visible; idempotent."""

    def discard(self, epoch: int, attempt: str) -> None:
        """Delete what was staged."""


class MemorySink:
    """The sink of a run without a store: it lives as long as the driver."""

    def __init__(self) -> None:
        self._staged: dict[tuple[int, str], Outputs] = {}
        self.published: list[tuple[int, Outputs]] = []

    def stage(self, epoch: int, attempt: str, outputs: Outputs, pool: TaskPool) -> bool:
        self._staged[epoch, attempt] = outputs
        return True

    def publish(self, epoch: int, attempt: str) -> None:
        self.published.append((epoch, self._staged.pop((epoch, attempt))))

    def discard(self, epoch: int, attempt: str) -> None:
        self._staged.pop((epoch, attempt), None)


class FileSink(SinkFolders):
    """One driver's file sink; only Spark's writer is simulated."""

    def __init__(self, disk: Disk, net: SimNet) -> None:
        self._disk = disk
        self._view = DiskView(disk, net)
        self.staged: dict[tuple[int, str], Outputs] = {}
        super().__init__(self._view, "sim://sink")

    def stage(self, epoch: int, attempt: str, outputs: Outputs, pool: TaskPool) -> bool:
        """As ``FileWriter`` of ``spark.sink_writers``: one job writes it all, before the commit."""
        staged = staged_folder(epoch, attempt)
        self._view.delete(staged)
        files: dict[int, Rows] = {0: []}  # the first task writes a file in any case
        for number, row in enumerate(
            (at, record) for at, found in outputs.items() for record in found
        ):
            files.setdefault(number % _FILES, []).append(row)
        self.staged[epoch, attempt] = outputs
        WriteJob(pool, self._disk, staged, files).run()
        if not any(files.values()):
            self._view.delete(staged)
            return False
        return True

    def _exclusive(self) -> AbstractContextManager[None]:
        return self._view.locked()


class SinkReader:
    """Reads a file sink whenever it has changed.

    ``problem`` is the first violation: what is visible must be complete committed epochs, and none
    may disappear or change unless the run rewound before it.
    """

    def __init__(
        self,
        disk: Disk,
        committed: Callable[[int], Collection[Outputs]],
        is_current: Callable[[int], bool],
    ) -> None:
        """``committed`` are the outputs that an epoch was committed with, by any driver.

        ``is_current`` returns whether an epoch is committed, and was not rewound since.
        """
        self._disk = disk
        self._committed = committed
        self._is_current = is_current
        self._version = -1
        self.visible: dict[int, Outputs] = {}
        self.problem: str | None = None

    def look(self) -> None:
        if self._disk.version == self._version:
            return
        self._version = self._disk.version
        before, self.visible = self.visible, visible(self._disk)
        for epoch, outputs in self.visible.items():
            if before.get(epoch) != outputs:
                self._check(epoch, outputs)
        for epoch, outputs in before.items():
            if self.visible.get(epoch) != outputs and self._is_current(epoch):
                self._report(f"epoch {epoch} was visible, and is {self.visible.get(epoch)}")

    def _check(self, epoch: int, outputs: Outputs) -> None:
        expected = [with_rows(one) for one in self._committed(epoch)]
        if not expected:
            self._report(f"epoch {epoch} is visible, and not committed")
        elif outputs not in expected:
            self._report(f"epoch {epoch} is visible as {outputs}, not {expected}")

    def _report(self, problem: str) -> None:
        self.problem = self.problem or f"I2: {problem}"


def with_rows(outputs: Outputs) -> Outputs:
    """Outputs without those of which there are none."""
    return {at: found for at, found in outputs.items() if found}


def visible(disk: Disk) -> dict[int, Outputs]:
    """What readers of a sink see, by epoch: all files but those below hidden folders."""
    found: dict[int, Outputs] = {epoch: {} for epoch in epochs_in(disk.names(""))}
    for path, rows in disk.files.items():
        first, *others = path.split("/")
        if any(name.startswith("_") for name in (first, *others)):
            continue
        for at, record in rows:
            found[epoch_of(first)].setdefault(at, []).append(record)
    return {
        epoch: {at: in_order(records) for at, records in outputs.items()}
        for epoch, outputs in found.items()
    }
