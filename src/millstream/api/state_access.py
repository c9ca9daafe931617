"""State over HTTP: keys as text, values as JSON, scans in pages.

A scan that is continued stays open on the nodes; it is closed when it is read to its end, or a
minute after its last page.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from millstream.api.contract import ScanQuery, StateItem, StateItems, StateJob, TopQuery
from millstream.api.key_text import parse_key
from millstream.api.served_run import ContinuationGoneError
from millstream.checkpoints.tables import jsonable
from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_reader import StateReader
from millstream.coordinator.state_scan import Scan
from millstream.errors import ConfigError
from millstream.flow.plan import Plan
from millstream.observe.progress import Progress
from millstream.ring.key_types import describe
from millstream.wire.scan_filters import KeyRange, Largest

_OPEN = 8  # scans
_LEASE = 60.0


@dataclass(frozen=True)
class _OpenScan:
    job: str
    scan: Scan
    until: float


class StateAccess:
    """Reads the state of a run's jobs by name."""

    def __init__(
        self,
        plan: Plan,
        coordinator: Coordinator,
        reader: StateReader,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = {job.name: at for at, job in plan.jobs}
        self._coordinator = coordinator
        self._reader = reader
        self._progress = progress
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _OpenScan] = OrderedDict()

    def jobs(self) -> list[StateJob]:
        """The jobs with state."""
        last = self._progress.last
        found = []
        for name, at in self._jobs.items():
            kind = self._key_type(at)
            counted = None if last is None else last.jobs.get(name)
            found.append(
                StateJob(
                    job=name,
                    key_type=None if kind is None else describe(kind),
                    state_keys=0 if counted is None else counted.state_keys,
                )
            )
        return found

    def get_many(self, job: str, keys: Sequence[str]) -> StateItems:
        """The state of keys, in the order asked for."""
        at = self._position(job)
        parsed = [self._parse(at, text) for text in keys]
        found = self._reader.get_many(at, parsed)
        items = [
            StateItem(key=jsonable(key), text=text, found=value is not None, value=jsonable(value))
            for text, key, value in zip(keys, parsed, found.values, strict=True)
        ]
        return StateItems(job=job, epoch=found.epoch, items=items)

    def scan(self, query: ScanQuery) -> StateItems:
        """A page of a scan: its first, or the one that follows."""
        self._close_expired()
        if query.continuation is not None:
            scan = self._continued(query.job, query.continuation)
        else:
            scan = self._begun(query)
        items = [item_of(key, value) for key, value in islice(scan, query.limit)]
        is_whole = len(items) < query.limit
        if is_whole:
            scan.close()
        return StateItems(
            job=query.job,
            epoch=scan.epoch,
            items=items,
            continuation=None if is_whole else self._keep(query.job, scan),
        )

    def top(self, query: TopQuery) -> StateItems:
        """The keys with the largest values."""
        largest = Largest(query.n, query.by)
        scan = self._reader.items(self._position(query.job), largest)
        items = [item_of(key, value) for key, value in largest.select(scan)]
        return StateItems(job=query.job, epoch=scan.epoch, items=items)

    def _begun(self, query: ScanQuery) -> Scan:
        at = self._position(query.job)
        prefix, start, stop = [
            None if text is None else self._parse(at, text)
            for text in (query.prefix, query.start, query.stop)
        ]
        return self._reader.items(at, KeyRange(prefix, start, stop))

    def _position(self, job: str) -> int:
        if job not in self._jobs:
            raise ConfigError(f"there is no job {job!r}; the jobs are {', '.join(self._jobs)}")
        return self._jobs[job]

    def _parse(self, job: int, text: str) -> Any:
        kind = self._key_type(job)
        return text if kind is None else parse_key(text, kind)

    def _key_type(self, job: int) -> pa.DataType | None:
        return self._coordinator.ledger.key_type(job)

    # -- scans that are continued ----------------------------------------------------------

    def _keep(self, job: str, scan: Scan) -> str:
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._open[name] = _OpenScan(job, scan, self._clock() + _LEASE)
            surplus = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - _OPEN)]
        for old in surplus:
            old.scan.close()
        return name

    def _continued(self, job: str, continuation: str) -> Scan:
        with self._lock:
            found = self._open.pop(continuation, None)
        if found is None or found.job != job:
            raise ContinuationGoneError
        return found.scan

    def _close_expired(self) -> None:
        now = self._clock()
        with self._lock:
            expired = [name for name, each in self._open.items() if each.until < now]
            scans = [self._open.pop(name).scan for name in expired]
        for scan in scans:
            scan.close()


def item_of(key: Any, value: Any) -> StateItem:
    """A key and its state as JSON."""
    return StateItem(key=jsonable(key), text=text_of(key), found=True, value=jsonable(value))


def text_of(key: Any) -> str:
    """A key as it is typed: the inverse of ``parse_key``."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return f"0x{key.hex()}"
    if isinstance(key, float):
        return repr(key)
    shown = jsonable(key)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
