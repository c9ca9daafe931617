"""Stand-ins for nodes: they answer the coordinator as nodes do, but compute the answers.

A thousand nodes with state of their own are too heavy for one process. What the coordinator sees of
a node is how far it has each of its slots, and which units it has frozen or was sent copies of. A
stand-in has just that, for the slots that it holds; copies take time, and nothing is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.checkpoints.epoch_contents import EMPTY
from millstream.coordinator.holders import Holders, Slots
from millstream.node.holdings import UNKNOWN
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim.metering import Reply
from millstream.sim.network import REFUSED
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import NOTHING_COMMITTED, Commit, Seal
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.load_report import ReportedJob, ReportedKey, ReportedLoad, packed_runs
from millstream.wire.membership import Assign, Ping, ReportUnreachable, Stop
from millstream.wire.receipt_tables import packed_reach
from millstream.wire.receipts import (
    CollectReceipts,
    CopyReceipt,
    FetchReach,
    NodeReport,
    Receipt,
    Receipts,
)
from millstream.wire.replication import CopySlots, ResendUnits
from millstream.wire.request import Dispatcher, Request

_KEY = pa.string()
_OUTPUT = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.int64())])
_COPIED_PER_SECOND = 100  # slots, by one donor for one receiver
_COPY_SECONDS = 1.0
_ROWS = 100
_KEYS = 8
_NEVER = -1

Later = Callable[[float, Callable[[], None]], None]
Fetch = Callable[[NodeId, Callable[[Assign], None]], None]


class Fleet:
    """All stand-ins of a run, and the units of the try that is fed to them."""

    def __init__(self, slots: int, jobs: Iterable[int], later: Later, fetch: Fetch) -> None:
        """``later`` does something after some seconds; ``fetch`` asks for the assignment."""
        self.slots = slots
        self.jobs = list(jobs)
        self.later = later
        self.fetch = fetch
        self.nodes: dict[NodeId, StandIn] = {}
        self.units: npt.NDArray[np.int64] = np.zeros(1, np.int64)  # the first slot of each
        self._numbers: dict[NodeId, int] = {}
        self._tables: dict[int, Holders] = {}

    def start(self, node: NodeId, domain: Domain) -> StandIn:
        """Start a node; its address is its name."""
        self._numbers[node] = len(self._numbers)
        started = self.nodes[node] = StandIn(self, node, domain)
        return started

    def held(self, placement: Placement, node: NodeId) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """The slots that a node holds under a placement, and whether it owns each."""
        table = self._tables.get(placement.version)
        if table is None:
            self._tables = {v: t for v, t in self._tables.items() if v > placement.version - 3}
            table = self._tables[placement.version] = Holders(placement, self._numbers)
        slots, columns = table.of(self._numbers[node])
        return slots, columns == 0

    def unreachable(self, placement: Placement) -> Iterator[ReportUnreachable]:
        """Reports of dead nodes: by tasks for slots that they own, by owners with copies there."""
        dead = {node.node for node in self.nodes.values() if not node.alive}
        told = set()
        for task, share in enumerate(placement.shares(range(self.slots))):
            if share.owner in dead:
                yield ReportUnreachable(share.owner, f"task {task}", 1)
                continue
            for copy in dead.intersection(share.copies):
                if (copy, share.owner) not in told:
                    told.add((copy, share.owner))
                    yield ReportUnreachable(copy, share.owner, 1)

    def feed(self, record: EpochRecord) -> None:
        """Feed all units of a try to their owners, which live, and to all that hold copies."""
        self.units = np.array(sorted({*record.partitions, *record.cuts}), np.int64)
        for name in record.placement.nodes:
            if self.nodes[name].alive:
                self.nodes[name].take_units(record)


class StandIn:
    """One node: the slots that it holds, in increasing order, and what it has of each."""

    def __init__(self, fleet: Fleet, node: NodeId, domain: Domain) -> None:
        self.node = node
        self.domain = domain
        self.alive = True
        self.slots: Slots = np.empty(0, np.intp)
        self.owned: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.through: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._unit: npt.NDArray[np.int64] = np.empty(0, np.int64)  # the try of the newest unit
        self._fleet = fleet
        self._version = -1
        self._committed = NOTHING_COMMITTED
        self._dispatch = Dispatcher(
            node,
            Ping.served_by(lambda _: node),
            Stop.served_by(lambda _: self.end()),
            Assign.served_by(self.assign),
            Seal.served_by(lambda request: self.seal(request.commit)),
            ResendUnits.served_by(self._resend),
            FetchReach.served_by(lambda _: packed_reach(self._reach())),
        )

    def end(self) -> None:
        """End the process."""
        self.alive = False

    def serve(self, request: Request[Any], reply: Reply) -> None:
        """Answer a request of the coordinator, perhaps later."""
        if isinstance(request, CollectReceipts):
            self._when_at(request.ring, lambda: reply(self._receipts(request)))
        elif isinstance(request, CopySlots):
            self._copy(request, reply)
        else:
            reply(self._dispatch(request))

    def _when_at(self, version: int, then: Callable[[], None]) -> None:
        """Do something under a placement of this version or a later one."""
        if version <= self._version:
            then()
            return

        def fetched(assignment: Assign) -> None:
            self.assign(assignment)
            then()

        self._fleet.fetch(self.node, fetched)

    # -- placement and commits -----------------------------------------------------------

    def assign(self, message: Assign) -> None:
        """Apply a placement, unless a newer one is known."""
        self.seal(message.committed)
        if message.placement.version <= self._version:
            return
        self._version = message.placement.version
        slots, self.owned = self._fleet.held(message.placement, self.node)
        unknown = EMPTY if message.committed == NOTHING_COMMITTED else UNKNOWN
        through = np.full(len(slots), unknown, np.int64)
        unit = np.full(len(slots), _NEVER, np.int64)
        _, old, new = np.intersect1d(self.slots, slots, assume_unique=True, return_indices=True)
        through[new], unit[new] = self.through[old], self._unit[old]
        self.slots, self.through, self._unit = slots, through, unit

    def seal(self, commit: Commit) -> None:
        """Learn of a commit: slots of which it has the unit, and all before, advance."""
        if commit.epoch > self._committed.epoch:
            self._committed = commit
            advanced = (self._unit == _number(*commit.at)) & (self.through == commit.epoch - 1)
            self.through[advanced] = commit.epoch

    # -- units ---------------------------------------------------------------------------

    def take_units(self, record: EpochRecord) -> None:
        """Take the units of a try, as owner or as backup."""
        self.seal(record.committed)
        self._when_at(record.placement.version, partial(self._take, _number(*record.at)))

    def _take(self, number: int) -> None:
        self._unit[:] = number

    def _resend(self, request: ResendUnits) -> None:
        backup = self._fleet.nodes[request.backup]
        sent = np.isin(backup.slots, self.slots[self.owned])
        backup._unit[sent] = _number(request.epoch, request.try_)

    def _receipts(self, request: CollectReceipts) -> Receipts:
        has = self._unit == _number(request.epoch, request.try_)
        up_to_date = self.through == self._committed.epoch
        receipts, copies = [], []
        for job in self._fleet.jobs:
            for run, digest in self._runs(has & self.owned & up_to_date, request):
                receipts.append(
                    Receipt(
                        job,
                        request.epoch,
                        request.try_,
                        run,
                        digest,
                        _ROWS,
                        keys=len(run),
                        outputs=len(run),
                        key_type=_KEY,
                        output=_OUTPUT,
                        key="word",
                    )
                )
            for run, digest in self._runs(has & ~self.owned, request):
                copies.append(CopyReceipt(job, run, digest))
        report = NodeReport({job: len(self.slots) for job in self._fleet.jobs}, load=self._load())
        return Receipts(tuple(receipts), tuple(copies), self._reach(), False, report)

    def _load(self) -> ReportedLoad:
        """About the same for every slot, and a few keys that are larger than others."""
        slots = self.slots[self.owned]
        tuples = (_ROWS + slots % 7).astype(np.float64)
        keys = tuple(ReportedKey(f"key {slot}", slot, _ROWS) for slot in slots[:_KEYS].tolist())
        bounds = _bounds(np.diff(slots) != 1, len(slots))
        return ReportedLoad(
            seconds=1.0,
            cpu_seconds=0.3,
            slots=packed_runs(range(int(slots[a]), int(slots[b - 1]) + 1) for a, b in bounds),
            jobs=tuple(
                ReportedJob.of(
                    job,
                    tuples=tuples,
                    seconds=tuples / _ROWS / 1000,
                    state_bytes=tuples * _ROWS,
                    hot_keys=keys,
                )
                for job in self._fleet.jobs
            ),
        )

    def _runs(
        self, which: npt.NDArray[np.bool_], request: CollectReceipts
    ) -> Iterator[tuple[range, str]]:
        """Some of its slots in runs within a unit, and the digest of the unit."""
        slots, firsts = self.slots[which], self._fleet.units
        unit = np.searchsorted(firsts, slots, side="right") - 1
        for start, stop in _bounds((np.diff(slots) != 1) | (np.diff(unit) != 0), len(slots)):
            first = int(firsts[unit[start]])
            digest = f"{first}:{request.epoch}.{request.try_}.{'0' * 32}"
            yield range(int(slots[start]), int(slots[stop - 1]) + 1), digest

    def _reach(self) -> tuple[tuple[int, int], ...]:
        """Up to which epoch it has each slot of the run, wherever that changes."""
        slots, through = self.slots, self.through
        runs = [(0, UNKNOWN)]
        for start, stop in _bounds((np.diff(slots) != 1) | (np.diff(through) != 0), len(slots)):
            for at, value in (
                (int(slots[start]), int(through[start])),
                (int(slots[stop - 1]) + 1, UNKNOWN),
            ):
                if runs[-1][0] == at:
                    runs.pop()
                if at < self._fleet.slots:
                    runs.append((at, value))
        return tuple(runs)

    # -- copies --------------------------------------------------------------------------

    def _copy(self, order: CopySlots, reply: Reply) -> None:
        """Copy some slots for about a second, and answer with those that remain."""
        to = self._fleet.nodes[order.to]
        if not to.alive:
            raise UnreachableError(order.to, REFUSED)
        wanted = np.concatenate([np.arange(run.start, run.stop) for run in order.slots])
        now, rest = np.split(wanted, [int(_COPIED_PER_SECOND * _COPY_SECONDS)])
        runs = _bounds(np.diff(rest) != 1, len(rest))
        remaining = tuple(range(int(rest[a]), int(rest[b - 1]) + 1) for a, b in runs)

        def install() -> None:
            to.install(now, self.slots, self.through)
            reply(remaining)

        self._fleet.later(
            len(now) / _COPIED_PER_SECOND, lambda: to._when_at(self._version, install)
        )

    def install(self, copied: Slots, slots: Slots, through: npt.NDArray[np.int64]) -> None:
        """Take copies of some of a donor's slots, unless it has them newer."""
        copied = np.intersect1d(copied, slots, assume_unique=True)
        mine, at, _ = np.intersect1d(self.slots, copied, assume_unique=True, return_indices=True)
        reached = through[np.searchsorted(slots, mine)]
        self.through[at] = np.where(
            self.owned[at], self.through[at], np.maximum(self.through[at], reached)
        )


def _number(epoch: int, try_: int) -> int:
    return epoch * 1000 + try_


def _bounds(changes: npt.NDArray[np.bool_], length: int) -> Iterator[tuple[int, int]]:
    """The bounds of runs, which end where there is a change to the next element."""
    if length:
        cuts = (np.flatnonzero(changes) + 1).tolist()
        yield from zip([0, *cuts], [*cuts, length], strict=True)
