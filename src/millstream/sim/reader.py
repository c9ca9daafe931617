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
_KEYS = 3


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
        """Keys are as they were at one epoch, which was the newest while they were read."""
        ledger, random_ = self._cluster.coordinator.ledger, self._cluster.world.random
        keys, before = [some_key(random_) for _ in range(_KEYS)], ledger.committed.epoch
        read = self._state.get_many(job, keys)
        if not before <= read.epoch <= ledger.committed.epoch:
            raise ViolationError(f"a read of job {job} is of epoch {read.epoch}, after {before}")
        comparable, expected = self._cluster.workload.comparable, self._reference
        for key, state in zip(keys, read.values, strict=True):
            found = None if state is None else comparable(state)
            if found != expected.state(read.epoch, job).get(key):
                raise ViolationError(f"{key} of job {job} is not {found} at {read.epoch}")


def read_all(coordinator: Coordinator, job: int) -> list[tuple[Any, Any]]:
    """All keys of a job; a scan that breaks because answers were lost is repeated, as users do."""
    for _ in range(_SCANS - 1):
        with suppress(ScanBrokenError):
            return list(StateReader(coordinator).items(job))
    return list(StateReader(coordinator).items(job))
