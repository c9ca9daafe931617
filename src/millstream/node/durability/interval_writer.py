"""The changes of several epochs at once, put into the store by order (``durability="interval"``).

A node retains what it has sealed until the store has it for good, which the next order says. Of
slots that it came to own since then it lacks that history: they go as a base.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from millstream.checkpoints.manifest import DeltaRecord
from millstream.checkpoints.records import compressed, delta_key
from millstream.node.durability.unit_writer import Locks, UnitWriter, cut
from millstream.node.durability.write_queue import Entry
from millstream.node.machine import NodeMachine
from millstream.node.replication import Retained
from millstream.ring.masks import runs_of
from millstream.wire.messages import NotReadyError, Persist, Persisted, RebasedError
from millstream.wire.net import Net

_NO_BASE = -1
_TOO_LATE = -2


class IntervalWriter:
    """A node's part in checkpoints that the coordinator orders."""

    def __init__(self, machine: NodeMachine, keeping: UnitWriter, locks: Locks, net: Net) -> None:
        self._machine = machine
        self._writer = keeping
        self._locks = locks
        self._following = net.lock()
        self._followed: tuple[Persist, int, Persisted] | None = None

    def persist(self, order: Persist) -> Persisted:
        """Put the changes since the last order into the store; durable when this returns.

        An order that is given again, under the same ring, is not followed again: the coordinator
        may have lost the answer, or given up waiting for it.
        """
        with self._following:
            version = self._machine.version
            if self._followed is not None and self._followed[:2] == (order, version):
                return self._followed[2]
            answer = self._persist(order)
            self._followed = order, version, answer
            return answer

    def _persist(self, order: Persist) -> Persisted:
        machine, through = self._machine, order.committed.epoch
        with self._locks.metadata:
            held = machine.store.holdings
            if order.incarnation != machine.incarnation or machine.committed.epoch < through:
                raise NotReadyError(f"node {machine.node} has not heard of epoch {through} yet")
            if (held.through[held.owned] < through).any():
                raise NotReadyError(f"node {machine.node} is not at epoch {through} yet")
            machine.store.checkpoints.stored = order.since
            runs = list(runs_of(held.owned, range(machine.store.slots)))
            spans = [span for run in runs for span in self._spans(run, order.since, through)]
            changes = [
                (slots, since, self._changes(slots, since, through))
                for slots, since in spans
                if since is not None
            ]
        self._write_bases([slots for slots, since in spans if since is None])
        deltas = [
            delta
            for slots, since, retained in changes
            for delta in self._deltas(slots, since, order, retained)
        ]
        kept = {k.key: k for k in self._writer.keeper.keep_all(entry for _, entry in deltas)}
        self._writer.weigh(sum(k.bytes for k in kept.values()))
        return Persisted(
            tuple(
                DeltaRecord(entry.key, job, slots, since, through, kept[entry.key].bytes)
                for (job, slots, since), entry in deltas
            ),
            tuple(machine.bases),
            tuple(runs),
        )

    def _write_bases(self, slots: list[range]) -> None:
        if slots:
            bases = self._writer.bases_of(slots)
            with self._locks.metadata:
                self._machine.bases = [*self._machine.bases, *bases]
            raise RebasedError(
                "slots that changed hands are in the store now; their changes follow"
            )

    def _spans(self, run: range, stored: int, through: int) -> Iterator[tuple[range, int | None]]:
        """Slots, and from which epoch on this node knows their changes; None if too late."""
        floor = self._machine.store.checkpoints.floor(run)
        known = np.maximum(stored, self._based(through)[run.start : run.stop])
        since = np.where(floor <= stored, stored, np.where(floor <= known, floor, _TOO_LATE))
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(since)) + 1).tolist(), len(run)]):
            found = int(since[start])
            yield range(run.start + start, run.start + stop), None if found == _TOO_LATE else found

    def _based(self, through: int) -> npt.NDArray[np.int64]:
        """How far this node's own bases go, of those that the manifest of an epoch can name."""
        based = np.full(self._machine.store.slots, _NO_BASE, dtype=np.int64)
        for base in self._machine.bases:
            if base.reaches > through:
                continue
            part = based[base.slots.start : base.slots.stop]
            np.maximum(part, base.through, out=part)
        return based

    def _changes(self, slots: range, since: int, through: int) -> dict[int, list[Retained]]:
        store = self._machine.store
        return {
            job: store.checkpoints.changes(job, slots, since, through)
            for job in store.jobs
            if self._machine.is_durable(job)
        }

    def _deltas(
        self, slots: range, since: int, order: Persist, changes: dict[int, list[Retained]]
    ) -> Iterator[tuple[tuple[str, range, int], Entry]]:
        machine, through = self._machine, order.committed.epoch
        for job, retained in changes.items():
            id_ = machine.id_of(job)
            for part in cut(slots, sum(kept.keys for kept in retained)) if retained else ():
                key = delta_key(
                    through, order.incarnation, order.committed.try_, id_, part, machine.node
                )
                encode = partial(self._encode, job, part, retained)
                yield (id_, part, since), Entry((job, part), key, encode)

    def _encode(self, job: int, slots: range, retained: list[Retained]) -> bytes:
        # To wait for this for a moment is quicker than to share the interpreter with it.
        with self._locks.state:
            merged = self._machine.merged(job, slots, retained)
        return compressed(merged)
