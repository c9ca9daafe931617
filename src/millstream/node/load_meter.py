"""The load meter: what a node does in an epoch, for its report to the coordinator. No I/O.

Work is counted for the epoch and try that it belongs to; a newer one voids the counts, as it voids
the units. What threads do in the background (CPU, copies, the store) is measured from one report
to the next. Clock and CPU time are handed in. The meter has a lock of its own, because feeds
count from several threads, and acquires no other while it holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.elastic.hot_keys import HotKeySketch
from millstream.errors import ConfigError
from millstream.flow.vertices import JobVertex
from millstream.node.unit_load import unit_load
from millstream.ring.key_types import key_text
from millstream.ring.masks import SlotCounts, SlotMask, runs_of
from millstream.wire.load_report import (
    MOST_KEYS,
    ReportedJob,
    ReportedKey,
    ReportedLoad,
    packed_runs,
)

At = tuple[int, int, int]
"""Incarnation, epoch and try."""

_NEVER: At = (-1, -1, -1)
_SKETCHED = 4 * MOST_KEYS
_UNMEASURED_BYTES = 64.0
_OLDER = 0.9


@dataclass(frozen=True, kw_only=True)
class MeterOptions:
    """``hot_share`` is the least share of a unit's tuples with which a key is reported.

    ``kind`` names the hardware of the host.
    """

    hot_share: float = 0.025
    kind: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.hot_share <= 1:
            raise ConfigError(f"hot_share must be above 0 and at most 1, got {self.hot_share}")


@dataclass(frozen=True)
class _Reading:
    """Meters that only grow, in seconds."""

    clock: float
    cpu: float
    copied: float
    stored: float


class _JobCounts:
    """The tuples and reduce seconds of a job in each slot, and its largest keys, in one epoch."""

    def __init__(self, slots: int) -> None:
        self.tuples = np.zeros(slots)
        self.seconds = np.zeros(slots)
        self.keys: HotKeySketch[tuple[int, Any]] = HotKeySketch(_SKETCHED)  # slot and key


@dataclass
class _EpochCounts:
    """What was counted in one epoch and try."""

    jobs: dict[int, _JobCounts] = field(default_factory=dict)
    feed_seconds: float = 0.0
    queue_seconds: float = 0.0
    most_waiting: int = 0
    waits: dict[tuple[int, int], float] = field(default_factory=dict)


@dataclass
class _KeySize:
    """The keys and bytes of encoded deltas, of which older ones count less."""

    keys: float = 0.0
    bytes: float = 0.0

    @property
    def mean(self) -> float:
        return self.bytes / self.keys if self.keys else _UNMEASURED_BYTES


class LoadMeter:
    """Measures the load of one node."""

    def __init__(
        self,
        jobs: Mapping[int, JobVertex],
        slots: int,
        clock: Callable[[], float],
        cpu: Callable[[], float] = lambda: 0.0,
        options: MeterOptions | None = None,
    ) -> None:
        """``cpu`` is the CPU time of the process so far, in seconds."""
        self._jobs = jobs
        self._slots = slots
        self._clock = clock
        self._cpu = cpu
        self._options = options or MeterOptions()
        self._lock = threading.Lock()
        self._at = _NEVER
        self._counts = _EpochCounts()
        self._sizes: dict[int, _KeySize] = {}
        self._copied = 0.0
        self._reported = _NEVER
        self._last: _Reading | None = None
        self._span = _Reading(0.0, 0.0, 0.0, 0.0)
        # Feeds that wait for their turn; whose turn it is and since when; and for how long each job
        # has had it.
        self._waiting = 0
        self._turn: tuple[int, float] | None = None
        self._held: dict[int, float] = {}

    def _counting(self, at: At) -> _EpochCounts | None:
        """The counts of an epoch and try; None if it was replaced. Call it with the lock."""
        if at > self._at:
            self._at, self._counts = at, _EpochCounts()
            if self._last is None:
                self._last = self._reading(0.0)
        return self._counts if at == self._at else None

    # -- feeds ---------------------------------------------------------------------------

    @contextmanager
    def feed(self, at: At) -> Iterator[None]:
        """Count how long a feed takes, from its header to its answer; not if it fails."""
        started = self._clock()
        yield
        with self._lock:
            counts = self._counting(at)
            if counts is not None:
                counts.feed_seconds += self._clock() - started

    @contextmanager
    def waiting(self, at: At) -> Iterator[None]:
        """Count how long a feed waits for the node before it stands in line."""
        started = self._clock()
        yield
        with self._lock:
            counts = self._counting(at)
            if counts is not None:
                counts.queue_seconds += self._clock() - started

    @contextmanager
    def turn(self, at: At, job: int, lock: AbstractContextManager[Any]) -> Iterator[None]:
        """Hold the lock of the state for a feed, and count how long the feed waited for it.

        What it waited for is counted by job: how long feeds of each had their turn meanwhile.
        """
        with self._lock:
            counts = self._counting(at)
            arrived = self._clock()
            before = self._held_until(arrived)
            self._waiting += 1
            if counts is not None:
                waiting = self._waiting - (self._turn is None)  # a lock that is free has no queue
                counts.most_waiting = max(counts.most_waiting, waiting)
        with lock:
            self._begin_turn(at, job, arrived, before)
            try:
                yield
            finally:
                with self._lock:
                    self._held = self._held_until(self._clock())
                    self._turn = None

    def _begin_turn(self, at: At, job: int, arrived: float, before: Mapping[int, float]) -> None:
        with self._lock:
            now = self._clock()
            self._waiting -= 1
            self._turn = job, now
            counts = self._counting(at)
            if counts is None:
                return
            counts.queue_seconds += now - arrived
            for other, held in self._held.items():
                waited = held - before.get(other, 0.0)
                if waited > 0:
                    pair = job, other
                    counts.waits[pair] = counts.waits.get(pair, 0.0) + waited

    def _held_until(self, now: float) -> dict[int, float]:
        held = dict(self._held)
        if self._turn is not None:
            job, since = self._turn
            held[job] = held.get(job, 0.0) + now - since
        return held

    # -- units ---------------------------------------------------------------------------

    def reduced(
        self, at: At, job: int, slots: range, blocks: Sequence[pa.RecordBatch], seconds: float
    ) -> None:
        """Count a unit that was reduced: its tuples and seconds by slot, its largest keys."""
        load = unit_load(self._jobs[job], slots, blocks, self._options.hot_share)
        with self._lock:
            counts = self._counting(at)
            if counts is None:  # a tuple log of an earlier epoch, replayed after a takeover
                return
            of_job = counts.jobs.get(job)
            if of_job is None:
                of_job = counts.jobs[job] = _JobCounts(self._slots)
            of_job.tuples[slots.start : slots.stop] += load.tuples
            of_job.seconds[slots.start : slots.stop] += seconds * load.shares
            if load.largest:
                keys = [(slot, key) for slot, key, _ in load.largest]
                of_job.keys.add(keys, [tuples for *_, tuples in load.largest])

    # -- in the background ---------------------------------------------------------------

    def encoded(self, job: int, keys: float, size: int) -> None:
        """Count the keys and bytes of a delta; state is taken to have as many bytes per key."""
        if keys:
            with self._lock:
                known = self._sizes.get(job, _KeySize())
                self._sizes[job] = _KeySize(keys + _OLDER * known.keys, size + _OLDER * known.bytes)

    def copied(self, seconds: float) -> None:
        """Count how long requests with copies took."""
        with self._lock:
            self._copied += seconds

    # -- reports -------------------------------------------------------------------------

    def report(
        self, at: At, owned: SlotMask, keys: Mapping[int, SlotCounts], stored: float
    ) -> ReportedLoad:
        """The load in an epoch and try: the same whenever it is asked for, until work is added.

        ``keys`` is the number of keys of each job in each slot that is ``owned``, ``stored`` how
        many seconds went into writing to the store so far.
        """
        with self._lock:
            if at != self._reported:
                reading = self._reading(stored)
                last = self._last or reading
                self._span = _Reading(
                    reading.clock - last.clock,
                    reading.cpu - last.cpu,
                    reading.copied - last.copied,
                    reading.stored - last.stored,
                )
                self._last, self._reported = reading, at
            counts = self._counts if at == self._at else _EpochCounts()
            jobs = tuple(self._job_report(job, counts, owned, keys[job]) for job in keys)
            return ReportedLoad(
                seconds=self._span.clock,
                cpu_seconds=self._span.cpu,
                copy_seconds=self._span.copied,
                store_seconds=self._span.stored,
                feed_seconds=counts.feed_seconds,
                queue_seconds=counts.queue_seconds,
                most_waiting=counts.most_waiting,
                slots=packed_runs(runs_of(owned)),
                jobs=jobs,
                waits=dict(counts.waits),
                kind=self._options.kind,
            )

    def _reading(self, stored: float) -> _Reading:
        return _Reading(self._clock(), self._cpu(), self._copied, stored)

    def _job_report(
        self, job: int, counts: _EpochCounts, owned: SlotMask, keys: SlotCounts
    ) -> ReportedJob:
        state_bytes = keys.astype(np.float64) * self._sizes.get(job, _KeySize()).mean
        found = counts.jobs.get(job)
        if found is None:
            return ReportedJob.of(job, state_bytes=state_bytes)
        tuples = found.tuples[owned]
        least = max(self._options.hot_share * float(tuples.sum()), 1.0)
        hot = [
            ReportedKey(key_text(key), slot, each.count - each.error)
            for each in found.keys.top(0.0)
            for slot, key in [each.key]
            if owned[slot] and each.count - each.error >= least
        ]
        return ReportedJob.of(
            job,
            tuples=tuples,
            seconds=found.seconds[owned],
            state_bytes=state_bytes,
            hot_keys=tuple(hot[:MOST_KEYS]),
        )
