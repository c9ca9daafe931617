"""A user who reads state while epochs run: each read is of one committed epoch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_reader import StateReader
from millstream.sim.checks import ViolationError
from millstream.sim.cluster import Cluster
from millstream.sim.workload import Answer, some_key
from millstream.stores.store import StoreUnavailableError
from millstream.wire.state_reads import ScanBrokenError

_SCANS = 3


class Reader:
    """Scans jobs and gets keys, and compares them with the plain answer."""

    def __init__(self, cluster: Cluster, reference: Answer, is_over: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._reference = reference
        self._is_over = is_over
        self._state = StateReader(cluster.coordinator)
        self.reads = 0

    def read_always(self, every: float) -> None:
        """Read about so often, until the run is over or has failed."""
        random_, driver = self._cluster.world.random, self._cluster.driver
        while not self._is_over():
            driver.sleep(random_.random() * 2 * every)
            job = random_.choice(list(self._cluster.workload.jobs))
            try:
                if random_.random() < 0.5:
                    self._scan(job)
                else:
                    self._get(job)
            except (ScanBrokenError, StoreUnavailableError):
                continue  # no node has the epoch any more, or slots are not restored yet
            except (StateLostError, RunEndedError):
                return
            self.reads += 1

    def _scan(self, job: int) -> None:
        scan = self._state.items(job)
        found = {key: self._cluster.workload.comparable(state) for key, state in scan}
        expected = self._reference.state(scan.epoch, job)
        if found != expected:
            raise ViolationError(
                f"a scan of job {job} at epoch {scan.epoch} is {found}, not {expected}"
            )

    def _get(self, job: int) -> None:
        """A key is as it was at an epoch that was the newest while it was read."""
        ledger, key = self._cluster.coordinator.ledger, some_key(self._cluster.world.random)
        before = ledger.committed.epoch
        state = self._state.get(job, key)
        found = None if state is None else self._cluster.workload.comparable(state)
        epochs = range(before, ledger.committed.epoch + 1)
        if all(found != self._reference.state(epoch, job).get(key) for epoch in epochs):
            raise ViolationError(f"{key} of job {job} is read as {found}, but not so at {epochs}")


def read_all(coordinator: Coordinator, job: int) -> list[tuple[Any, Any]]:
    """All keys of a job; a scan that breaks because answers were lost is repeated, as users do."""
    for _ in range(_SCANS - 1):
        with suppress(ScanBrokenError):
            return list(StateReader(coordinator).items(job))
    return list(StateReader(coordinator).items(job))
