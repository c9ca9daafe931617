"""The invariants of a simulated run, checked at every step against plain dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from functools import partial, wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.coordinator.epochs import EpochResult
from millstream.coordinator.service import Coordinator
from millstream.node.held_units import Unit, Work, committed_units, covered
from millstream.node.holdings import UNKNOWN
from millstream.node.machine import NodeMachine
from millstream.ring.hashing import hash_key
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim.cluster import Cluster
from millstream.sim.expiring import last_touches
from millstream.sim.lock_check import guard
from millstream.sim.workload import Answer, Outputs
from millstream.wire.commit import Commit
from millstream.wire.feed import NotDeterministicError, RecutError
from millstream.wire.receipts import Receipt
from millstream.work.unit import Reduced, ReduceOperator

# What changes the state of a job, and what reads it.
_CHANGES = ("apply", "drop")
_TIME_TO_REPLICATE = 120.0
_STATES_EVERY = 40  # steps
_READS = ("snapshot", "get", "items", "count")


class ViolationError(AssertionError):
    """An invariant was broken."""


class Checks:
    """The invariants of one run."""

    def __init__(self, cluster: Cluster, reference: Answer) -> None:
        self._cluster = cluster
        self._reference = reference
        self._jobs = list(cluster.workload.jobs)
        self._slots = cluster.size.slots
        self._slot_of: dict[str, int] = {}
        self._placement: Placement | None = None
        self._in_sync: dict[NodeId, SlotMask] = {}
        # What the state of a job on a node was when it was last found right.
        self._checked: dict[tuple[NodeId, int], tuple[int, bytes]] = {}
        self._steps = 0
        self._known: object = None
        self._changes: Counter[tuple[NodeId, int]] = Counter()
        # The try under way, and the owners that slots have had since it began.
        self._try: tuple[int, int] | None = None
        self._owners: list[list[NodeId]] = []
        self._watch_retries()
        for machine in cluster.machines.values():
            self._watch(machine)
        cluster.on_start = self._watch

    def _watch(self, machine: NodeMachine) -> None:
        self._watch_freezing(machine)
        guard(machine, partial(self._check_locks, machine.node))
        for job, operator in machine.store.operators.items():
            self._watch_changes((machine.node, job), operator)

    @property
    def _coordinator(self) -> Coordinator:
        return self._cluster.coordinator

    def step(self, faulted: Container[str], exact: bool) -> None:
        """Check what must hold at each step; without an exact answer, that copies agree.

        Only processes that have run since the last step can have changed anything.
        """
        self._steps += 1
        ran = self._cluster.world.ran
        if self._cluster.name in ran:
            self.changes()
            self.fenced(faulted)
            self.claims(self._cluster.machines if self._has_changed() else ran)
        elif not ran.isdisjoint(self._cluster.machines):
            self.claims(ran)
        if self._steps % _STATES_EVERY == 0:
            if exact:
                self.states()
            if not exact or self._cluster.workload.leaves_choice:
                self.agreement()

    # I1, on every copy: what a node reports to have through an epoch, it has.

    def states(self) -> None:
        """Every copy of every slot is what the plain answer has for its epoch.

        What was correct is checked again only after it was changed.
        """
        for node, machine in self._cluster.machines.items():
            through = machine.store.holdings.through
            for job, vertex in self._cluster.workload.jobs.items():
                now = self._changes[node, job], through.tobytes()
                if self._checked.get((node, job)) == now:
                    continue
                items = machine.store.operators[job].state.items(np.ones(self._slots, dtype=bool))
                found = {key: self._cluster.workload.comparable(state) for key, state in items}
                expected = self._expected(self._reference.state, job, through)
                if found != expected:
                    raise ViolationError(_difference(f"I1: {node}, job {job}", found, expected))
                touched = last_touches(vertex, machine.store.operators[job].state)
                due = self._expected(self._reference.touched, job, through)
                if touched != due:
                    what = f"I1: last touches of {node}, job {job}"
                    raise ViolationError(_difference(what, touched, due))
                self._checked[node, job] = now

    def agreement(self) -> None:
        """Copies of a slot that are at the same epoch are the same, whatever it consists of."""
        for job in self._cluster.workload.jobs:
            known: dict[tuple[int, int], tuple[NodeId, dict[str, Any]]] = {}
            for node, machine in self._cluster.machines.items():
                by_slot: dict[int, dict[str, Any]] = {}
                for key, state in machine.store.operators[job].state.items(
                    np.ones(self._slots, dtype=bool)
                ):
                    by_slot.setdefault(self._slot(key), {})[key] = state
                for slot, epoch in enumerate(machine.store.holdings.through.tolist()):
                    if epoch == UNKNOWN:
                        continue
                    mine = by_slot.get(slot, {})
                    other, theirs = known.setdefault((slot, epoch), (node, mine))
                    if mine != theirs:
                        what = f"I1: job {job}, slot {slot}: {node} and {other} differ at {epoch}"
                        raise ViolationError(_difference(what, mine, theirs))

    def _watch_changes(self, at: tuple[NodeId, int], operator: ReduceOperator[Any]) -> None:
        """Count what may change the state of a job: what must, and reductions, which must not."""

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*arguments: Any) -> Any:
                self._changes[at] += 1
                return function(*arguments)

            return call

        def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*arguments: Any) -> Any:
                self._check_locks(at[0], name)
                return function(*arguments)

            return call

        state: Any = operator.state
        for name in (*_CHANGES, *_READS):
            setattr(state, name, guarded(name, getattr(state, name)))
        for name in _CHANGES:
            setattr(state, name, counted(getattr(state, name)))
        reduce = counted(guarded("reduce", operator.reduce))
        operator.reduce = reduce  # type: ignore[method-assign]

    def _check_locks(self, node: NodeId, what: str) -> None:
        """A change of state holds both locks of the node, a read one of them.

        So no thread reads what another one is changing, wherever it is preempted.
        """
        world = self._cluster.world
        if world.in_hook or world.current is None or world.current.process.name != node:
            return  # the checks themselves
        state, metadata = (lock.is_mine for lock in self._cluster.locks(node))
        enough = state and metadata if what in _CHANGES else state or metadata
        if not enough:
            raise ViolationError(
                f"{world.current}: {what} with locks state={state}, metadata={metadata}"
            )

    def _expected(
        self,
        known: Callable[[int, int], Mapping[str, Any]],
        job: int,
        through: npt.NDArray[np.int64],
    ) -> dict[str, Any]:
        """What is known of a job's keys, each at the epoch that its slot has come to."""
        expected: dict[str, Any] = {}
        for epoch in set(through.tolist()) - {UNKNOWN}:
            for key, entries in known(epoch, job).items():
                if through[self._slot(key)] == epoch:
                    expected[key] = entries
        return expected

    def _slot(self, key: str) -> int:
        slot = self._slot_of.get(key)
        if slot is None:
            slot = self._slot_of[key] = hash_key(key, pa.string()) % self._slots
        return slot

    # L

    def _watch_retries(self) -> None:
        """A try that met different inputs is repeated only if a takeover explains them."""
        is_retryable, behind = (
            self._coordinator.is_retryable,
            self._cluster.workload.plan.downstream,
        )

        def watched(problem: Exception) -> bool:
            retried = is_retryable(problem)
            causes = self._coordinator.failures.causes(problem)
            explained = any(
                isinstance(cause, RecutError)
                or (isinstance(cause, NotDeterministicError) and cause.job in behind)
                for cause in causes
            )
            if retried and not (explained and self._was_cut()):
                raise ViolationError(
                    f"L: {problem} was retried, but no takeover has cut a unit in two"
                )
            return retried

        self._coordinator.is_retryable = watched  # type: ignore[method-assign]

    def _was_cut(self) -> bool:
        """Whether neighbours of one owner have had different ones since the try began."""
        self._note_owners()
        first = self._owners[0]
        return any(
            first[slot] == first[slot + 1] and owners[slot] != owners[slot + 1]
            for owners in self._owners
            for slot in range(self._slots - 1)
        )

    def _is_new_try(self) -> bool:
        record = self._coordinator.ledger.record
        return record is not None and record.at != self._try

    def _note_owners(self) -> None:
        record = self._coordinator.ledger.record
        if record is None:
            return
        if record.at != self._try:
            self._try, self._owners = record.at, []
        owners = [self._coordinator.roster.placement.owner(s) for s in range(self._slots)]
        if owners not in self._owners[-1:]:
            self._owners.append(owners)

    # I2

    def outputs(self, published: list[tuple[int, Outputs]]) -> None:
        """Nothing that was published is wrong, and no epoch was published twice."""
        epochs = [epoch for epoch, _ in published]
        if epochs != sorted(set(epochs)):
            raise ViolationError(f"I2: epochs were published as {epochs}")
        for epoch, outputs in published:
            for at, found in outputs.items():
                expected = self._reference.outputs[epoch][at]
                if found != expected:
                    raise ViolationError(f"I2: {at} gave {found} in epoch {epoch}, not {expected}")

    def counts(self, result: EpochResult) -> None:
        """What windowed jobs have counted in an epoch, each value once."""
        for job, expected in self._reference.counted[result.record.epoch].items():
            found = result.counted[job].tallies
            if found != expected:
                raise ViolationError(f"I2: job {job} counted {found}, not {expected}")

    # I3

    def _watch_freezing(self, machine: NodeMachine) -> None:
        freeze = machine.freeze

        def watched(
            work: Work, reduced: Reduced[Any], receipt: Receipt
        ) -> tuple[list[pa.RecordBatch], list[Unit]]:
            result = freeze(work, reduced, receipt)
            placement = machine.placement
            assert placement is not None
            for slot in work.feed.slots:
                if placement.owner(slot) != machine.node:
                    raise ViolationError(
                        f"I3: {machine.node} froze slot {slot}, which it does not own"
                    )
            return result

        machine.freeze = watched  # type: ignore[method-assign]

    def fenced(self, faulted: Container[str]) -> None:
        """I3b: no node without a fault is fenced, however slow it is."""
        if not self._coordinator.has_begun:
            return
        for node in self._coordinator.roster.dead_nodes:
            if node not in faulted:
                raise ViolationError(f"I3b: {node} is fenced, although it is alive")

    # I4 and I5

    def changes(self) -> None:
        """A new placement drops no copy that is needed, and moves only what has to move."""
        if not self._coordinator.has_begun:
            return
        roster = self._coordinator.roster
        now = {node: roster.in_sync(node) for node in roster.nodes}
        before, placement = self._placement, roster.placement
        if before is not None and before is not placement:
            self._check_copies(now)
            self._check_moves(before, placement)
        if before is not placement or self._is_new_try():
            self._note_owners()
        self._placement, self._in_sync = placement, now

    def _has_changed(self) -> bool:
        """Whether the coordinator's knowledge has changed."""
        commit, durable = self._coordinator.ledger.committed, self._cluster.durable
        stored = None if durable is None else durable.journal.committed.epoch
        copies = [(node, mask.tobytes()) for node, mask in self._in_sync.items()]
        known = (self._placement, commit.at, stored, copies)
        before, self._known = self._known, known
        return known != before

    def _check_copies(self, now: dict[NodeId, SlotMask]) -> None:
        old = sum((self._in_sync[node].astype(int) for node in now), np.zeros(self._slots, int))
        new = sum((mask.astype(int) for mask in now.values()), np.zeros(self._slots, int))
        needed = min(self._cluster.size.replicas + 1, len(self._coordinator.roster.active))
        wrong = np.flatnonzero(new < np.minimum(old, needed))
        if len(wrong):
            raise ViolationError(f"I4: slots {wrong.tolist()} lost a copy that they need")

    def _check_moves(self, before: Placement, after: Placement) -> None:
        lost, goal = self._coordinator.roster.dead_nodes, self._coordinator.roster.goal
        for slot in range(self._slots):
            old, new = before.owner(slot), after.owner(slot)
            if old != new and old not in lost and goal.owner(slot) != new:
                raise ViolationError(f"I5: slot {slot} went from {old} to {new} for no reason")

    def await_copies(self, calm_from: Callable[[], float]) -> None:
        """After the last fault every slot has all its copies again, in bounded time."""
        roster, driver = self._coordinator.roster, self._cluster.driver
        began = driver.now()
        while True:
            if self._coordinator.state_lost is not None:
                raise self._coordinator.state_lost
            wanted = min(self._cluster.size.replicas, len(roster.active) - 1) + 1
            short = np.flatnonzero(roster.copy_counts() < wanted)
            if not len(short) and not roster.is_under_replicated:
                return
            if driver.now() > max(began, calm_from()) + _TIME_TO_REPLICATE:
                raise ViolationError(f"I4: copies are missing for too long, of {short.tolist()}")
            driver.sleep(0.5)

    def claims(self, nodes: Container[str]) -> None:
        """Every copy in sync for the coordinator is complete; no epoch is pending needlessly.

        Checks some nodes only.
        """
        if not self._coordinator.has_begun:
            return
        roster, commit = self._coordinator.roster, self._coordinator.ledger.committed
        for node in roster.nodes if commit.epoch >= 0 else ():  # before, every copy is empty
            if node not in nodes:
                continue
            machine = self._cluster.machines[node]
            lacking = roster.in_sync(node) & ~self._complete(machine, commit)
            if self._store_has(commit):  # from which an owner restores it when it is needed
                lacking &= ~roster.placement.owned(node)
            wrong = np.flatnonzero(lacking)
            if len(wrong):
                raise ViolationError(f"I4: {node} has no complete copy of slots {wrong.tolist()}")
        if self._cluster.durable is not None:
            return  # pending epochs are evicted when the last slot is restored
        for node, machine in self._cluster.machines.items():
            if node not in nodes or self._cluster.is_at_work(node):
                continue
            if not self._cluster.world.alive(node):
                continue  # it may have ended in the middle of a merge
            holdings = machine.store.holdings
            for pending in machine.store.pending_epochs.oldest_first():
                if not (holdings.held & (holdings.through < pending.epoch)).any():
                    raise ViolationError(
                        f"{node} retains epoch {pending.epoch}, which it does not need"
                    )

    def _store_has(self, commit: Commit) -> bool:
        durable = self._cluster.durable
        return durable is not None and durable.journal.committed.epoch >= commit.epoch

    def survivors(self, without: set[str]) -> npt.NDArray[np.int64]:
        """How many complete copies of each slot are left without some nodes.

        Those of nodes that leave, and of former owners and backups, do not count: they may give
        them up at any moment.
        """
        found = np.zeros(self._slots, dtype=np.int64)
        roster, commit = self._coordinator.roster, self._coordinator.ledger.committed
        for node in roster.active:
            if node not in without and self._cluster.world.alive(node):
                found += self._complete(self._cluster.machines[node], commit) & roster.wanted(node)
        return found

    def _complete(self, machine: NodeMachine, commit: Commit) -> SlotMask:
        reach = machine.store.pending_epochs.reach(machine.store.holdings.through)
        complete: SlotMask = reach >= commit.epoch
        if commit.at == machine.current.at:  # committed, but the node does not know of it yet
            same = list(committed_units(machine.current.units, commit))
            units = covered(same, self._jobs, self._slots, effective=False)
            complete |= units & (reach == commit.epoch - 1)
        return complete & machine.store.holdings.held


def _difference(what: str, found: dict[str, Any], expected: dict[str, Any]) -> str:
    keys = sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k))
    shown = ", ".join(f"{k}: {found.get(k)} instead of {expected.get(k)}" for k in keys[:4])
    return f"{what}: {shown}"
