"""The load of the run: what nodes report with their receipts, assembled after each epoch.

Averages over epochs are made here and not on nodes: those of a slot then outlive its owner, and a
node that takes a slot over has its history. The cost of an epoch is linear in nodes and slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.coordinator.hot_key_monitor import HotKeyMonitor
from millstream.coordinator.load_averages import (
    Figures,
    NamedAverages,
    NodeAverages,
    SlotAverages,
    Slots,
)
from millstream.elastic.load import HotKey, JobLoad, Load, NodeLoad
from millstream.elastic.load_history import with_newest
from millstream.errors import ConfigError
from millstream.ring.masks import expanded
from millstream.ring.ring import NodeId
from millstream.wire.load_report import FIGURE, RUN, ReportedJob, ReportedLoad
from millstream.wire.receipt_tables import joined
from millstream.wire.receipts import NodeReport

_HISTORY_BYTES = 64 * 2**20
_LEAST_HISTORY = 8
_OWN_FIGURES = 6
_EPOCH = "epoch"
_ARRIVAL = "arrival"

_Field = Literal["tuples", "seconds", "state_bytes"]
_F = TypeVar("_F", bound=np.floating[Any])


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """``half_life`` is in epochs: so much older, an epoch has half the weight in averages.

    ``history`` epochs are retained, fewer if there are so many slots that they would take too much
    memory; if epochs are short, some are left out, so that the others cover at least ``span``. Keys
    with a share of at least ``hot_share`` of a job's tuples are hot.
    """

    half_life: float = 2.0
    history: int = 120
    span: timedelta = timedelta(minutes=2)
    hot_share: float = 0.05

    def __post_init__(self) -> None:
        if self.half_life <= 0:
            raise ConfigError(f"half_life must be above 0, got {self.half_life}")
        if self.history < 1:
            raise ConfigError(f"history must be at least 1, got {self.history}")
        if self.span < timedelta(0):
            raise ConfigError(f"span must be at least 0, got {self.span}")
        if not 0 < self.hot_share <= 1:
            raise ConfigError(f"hot_share must be above 0 and at most 1, got {self.hot_share}")


class LoadMonitor:
    """The load of a run, epoch by epoch; ``history`` has the newest last."""

    def __init__(self, now: Callable[[], float], options: LoadOptions | None = None) -> None:
        self._now = now
        self._options = options or LoadOptions()
        self._backlog = 0.0
        self.history: tuple[Load, ...] = ()
        self.begin({}, 0)

    def begin(self, jobs: Mapping[int, str], slots: int) -> None:
        """Start a run with these jobs, whose names are given, and so many slots."""
        decay = 0.5 ** (1 / self._options.half_life)
        self._jobs = jobs
        self._slots = SlotAverages(2 * len(jobs), slots, decay)  # tuples and seconds of each job
        self._state_bytes = np.zeros(slots)
        self._nodes = NodeAverages(_OWN_FIGURES + 2, decay)
        self._seconds: NamedAverages[str] = NamedAverages(decay)
        self._waits: NamedAverages[tuple[int, int]] = NamedAverages(decay)
        self._hot = {job: HotKeyMonitor(decay, self._options.hot_share) for job in jobs}
        self._admitted: float | None = None
        self._arrival: float | None = None
        size = slots * (3 * 8 + len(jobs) * 2 * FIGURE.itemsize)
        most = max(_LEAST_HISTORY, _HISTORY_BYTES // max(1, size))
        self._retained = min(self._options.history, most)

    def newest(self) -> Load | None:
        """The load after the newest epoch; None before the first."""
        return self.history[-1] if self.history else None

    def admit(self) -> None:
        """Note that an epoch begins."""
        before, self._admitted = self._admitted, self._now()
        self._arrival = None if before is None else self._admitted - before

    def report_backlog(self, epochs: float) -> None:
        """Note what waits at sources, as in :class:`Load`; from then on loads have it."""
        self._backlog = epochs

    def add(self, epoch: int, reports: Mapping[NodeId, NodeReport]) -> Load:
        """Add the reports of a committed epoch; return the load after it."""
        now = self._now()
        loads = {node: report.load for node, report in reports.items() if report.load is not None}
        index = _Index([load.slots for load in loads.values()])
        reduced = self._add_slots(index, list(loads.values()))
        took = 0.0 if self._admitted is None else now - self._admitted
        # Nobody knows how long the input of the first epoch took to arrive.
        arrival = took if self._arrival is None else self._arrival
        self._seconds.add({_EPOCH: took, _ARRIVAL: arrival})
        self._waits.add(_summed(load.waits for load in loads.values()))
        of_slots = self._slots.values
        load = Load(
            epoch=epoch,
            time=now,
            nodes=self._node_loads(reports, loads, index, reduced),
            tuples=_frozen(of_slots[0::2].sum(axis=0)),
            seconds=_frozen(of_slots[1::2].sum(axis=0)),
            state_bytes=_frozen(self._state_bytes.copy()),
            epoch_seconds=(seconds := self._seconds.values[_EPOCH]),
            pressure=seconds / arrived if (arrived := self._seconds.values[_ARRIVAL]) > 0 else 1.0,
            backlog=self._backlog,
            waits={
                (self._jobs[waiting], self._jobs[other]): seconds
                for (waiting, other), seconds in self._waits.values.items()
            },
            hot_keys=tuple(
                HotKey(job=self._jobs[job], key=key, slot=slot, share=share)
                for job, hot in self._hot.items()
                for key, slot, share in hot.hottest()
            ),
            jobs={
                name: JobLoad(
                    tuples=_frozen(of_slots[2 * at].astype(np.float32)),
                    seconds=_frozen(of_slots[2 * at + 1].astype(np.float32)),
                )
                for at, name in enumerate(self._jobs.values())
            },
        )
        span = self._options.span.total_seconds()
        self.history = with_newest(self.history, load, most=self._retained, span=span)
        return load

    def _add_slots(self, index: _Index, loads: Sequence[ReportedLoad]) -> Figures:
        """Add the figures of all slots; return the tuples and seconds of each node."""
        by_job = [{of_job.job: of_job for of_job in load.jobs} for load in loads]
        figures: list[Figures] = []
        state_bytes = np.zeros(len(index.slots))
        for job, hot in self._hot.items():
            none = ReportedJob(job)
            found = [of_node.get(job, none) for of_node in by_job]
            tuples = index.figures(found, "tuples")
            figures += [tuples, index.figures(found, "seconds")]
            state_bytes += index.figures(found, "state_bytes")
            hot.add(float(tuples.sum()), [key for of_job in found for key in of_job.hot_keys])
        self._slots.add(index.slots, figures)
        self._state_bytes[index.slots] = state_bytes
        reduced = [index.by_node(of_slots) for of_slots in figures]
        nothing = np.zeros(len(loads))
        return np.array([sum(reduced[0::2], nothing), sum(reduced[1::2], nothing)])

    def _node_loads(
        self,
        reports: Mapping[NodeId, NodeReport],
        loads: Mapping[NodeId, ReportedLoad],
        index: _Index,
        reduced: Figures,
    ) -> dict[NodeId, NodeLoad]:
        nodes = list(loads)
        figures = np.column_stack([_own_figures(list(loads.values())), *reduced])
        averages = self._nodes.add(nodes, figures).tolist()
        state_bytes = index.by_node(self._state_bytes[index.slots]).tolist()
        return {
            node: NodeLoad(
                node=node,
                cpu=cpu,
                queue=queue,
                waiting=waiting,
                tuples=tuples,
                reduce_seconds=seconds,
                feed_seconds=feed,
                copy_seconds=copy,
                store_seconds=store,
                state_bytes=round(of_slots),
                memory=reports[node].memory,
                kind=loads[node].kind,
            )
            for node, of_slots, (cpu, queue, waiting, feed, copy, store, tuples, seconds) in zip(
                nodes, state_bytes, averages, strict=True
            )
        }


class _Index:
    """The slots of all reports, one report after the other."""

    def __init__(self, of_nodes: Sequence[bytes]) -> None:
        """``of_nodes`` has rows of ``RUN``."""
        runs, sources = joined(of_nodes, RUN)
        self.slots: Slots = expanded(runs["start"], runs["stop"])
        self._node = np.repeat(sources, runs["stop"] - runs["start"])
        self._sizes = np.bincount(self._node, minlength=len(of_nodes)).tolist()

    def figures(self, found: Sequence[ReportedJob], field: _Field) -> Figures:
        """A figure of each slot, as its owner reports it."""
        parts = list(map(attrgetter(field), found))
        if not all(parts):
            sizes = zip(parts, self._sizes, strict=True)
            parts = [part or bytes(size * FIGURE.itemsize) for part, size in sizes]
        return np.frombuffer(b"".join(parts), FIGURE).astype(np.float64)

    def by_node(self, figures: Figures) -> Figures:
        """The sum of each report."""
        sums = np.bincount(self._node, figures, minlength=len(self._sizes))
        return sums.astype(np.float64, copy=False)


def _own_figures(loads: Sequence[ReportedLoad]) -> Figures:
    """The figures of each node, of which it is the only source."""
    rows = [
        (
            load.cpu_seconds / load.seconds if load.seconds > 0 else 0.0,
            load.queue_seconds,
            load.most_waiting,
            load.feed_seconds,
            load.copy_seconds,
            load.store_seconds,
        )
        for load in loads
    ]
    return np.array(rows, np.float64).reshape(len(loads), _OWN_FIGURES)


def _summed(parts: Iterable[Mapping[tuple[int, int], float]]) -> dict[tuple[int, int], float]:
    total: dict[tuple[int, int], float] = {}
    for part in parts:
        for pair, seconds in part.items():
            total[pair] = total.get(pair, 0.0) + seconds
    return total


def _frozen(figures: npt.NDArray[_F]) -> npt.NDArray[_F]:
    figures.setflags(write=False)
    return figures
