"""Writes the changes of several epochs as deltas, on request (``durability="interval"``).

A node retains what it has sealed until the store has it, which the next request says. Of slots that
were assigned to it since then it lacks that history: they are written as base records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from millstream.checkpoints.manifest import DeltaRecord
from millstream.checkpoints.records import compressed, delta_key
from millstream.node.durability.base_writer import BaseWriter
from millstream.node.durability.write_queue import Entry, WriteQueue
from millstream.node.key_batches import split_by_keys
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.replication_log import Retained
from millstream.ring.masks import equal_runs, runs_of
from millstream.wire.net import Net
from millstream.wire.persistence import NotReadyError, Persist, Persisted, RebasedError

_NO_BASE = -1
_TOO_LATE = -2


class IntervalWriter:
    """A node's part in the checkpoints that the coordinator begins."""

    def __init__(
        self, machine: NodeMachine, queue: WriteQueue, bases: BaseWriter, locks: Locks, net: Net
    ) -> None:
        self._machine = machine
        self._queue = queue
        self._bases = bases
        self._locks = locks
        self._persisting = net.lock()
        self._last: tuple[Persist, int, Persisted] | None = None

    def persist(self, request: Persist) -> Persisted:
        """Write the changes since the last request; durable when this returns.

        A request that is repeated under the same ring gets the same answer, without another write:
        the coordinator may have lost the answer, or timed out.
        """
        with self._persisting:
            version = self._machine.version
            if self._last is not None and self._last[:2] == (request, version):
                return self._last[2]
            answer = self._persist(request)
            self._last = request, version, answer
            return answer

    def _persist(self, request: Persist) -> Persisted:
        machine, through = self._machine, request.committed.epoch
        with self._locks.metadata:
            held = machine.store.holdings
            if request.incarnation != machine.incarnation or machine.committed.epoch < through:
                raise NotReadyError(f"node {machine.node} has not sealed epoch {through} yet")
            if (held.through[held.owned] < through).any():
                raise NotReadyError(f"node {machine.node} is not at epoch {through} yet")
            machine.store.replication.stored = request.since
            # The spans below rely on them; a newer base may replace one while deltas are written.
            bases = tuple(machine.bases)
            runs = list(runs_of(held.owned, range(machine.store.slots)))
            spans = [span for run in runs for span in self._spans(run, request.since, through)]
            changes = [
                (slots, since, self._changes(slots, since, through))
                for slots, since in spans
                if since is not None
            ]
        self._write_bases([slots for slots, since in spans if since is None])
        deltas = [
            delta
            for slots, since, retained in changes
            for delta in self._deltas(slots, since, request, retained)
        ]
        sizes = {each.key: each.bytes for each in self._queue.write(entry for _, entry in deltas)}
        self._bases.add_delta_bytes(sum(sizes.values()))
        return Persisted(
            tuple(
                DeltaRecord(entry.key, job, slots, since, through, sizes[entry.key])
                for (job, slots, since), entry in deltas
            ),
            tuple(dict.fromkeys((*bases, *machine.bases))),
            tuple(runs),
        )

    def _write_bases(self, slots: list[range]) -> None:
        if slots:
            bases = self._bases.write(slots)
            with self._locks.metadata:
                self._machine.bases = [*self._machine.bases, *bases]
            raise RebasedError("base records of reassigned slots are written; retry for deltas")

    def _spans(self, run: range, stored: int, through: int) -> Iterator[tuple[range, int | None]]:
        """Slots, and the epoch after which this node has their changes; None if it has too few."""
        floor = self._machine.store.replication.floor(run)
        known = np.maximum(stored, self._based(through)[run.start : run.stop])
        since = np.where(floor <= stored, stored, np.where(floor <= known, floor, _TOO_LATE))
        for slots in equal_runs(run, since):
            known_since = int(since[slots.start - run.start])
            yield slots, None if known_since == _TOO_LATE else known_since

    def _based(self, through: int) -> npt.NDArray[np.int64]:
        """The epochs of this node's own bases, of those that the manifest of an epoch can name."""
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
            job: store.replication.changes(job, slots, since, through)
            for job in store.jobs
            if self._machine.is_durable(job)
        }

    def _deltas(
        self, slots: range, since: int, request: Persist, changes: dict[int, list[Retained]]
    ) -> Iterator[tuple[tuple[str, range, int], Entry]]:
        machine, through = self._machine, request.committed.epoch
        for job, retained in changes.items():
            id_ = machine.id_of(job)
            keys = sum(each.keys for each in retained)
            for part in split_by_keys(slots, keys) if retained else ():
                key = delta_key(
                    through, request.incarnation, request.committed.try_, id_, part, machine.node
                )
                encode = partial(self._encode, job, part, retained)
                yield (id_, part, since), Entry((job, part), key, encode)

    def _encode(self, job: int, slots: range, retained: list[Retained]) -> bytes:
        # Under the lock: a reduction that runs meanwhile would contend for the interpreter.
        with self._locks.state:
            encoded = self._machine.deltas.encoded(job, slots, retained)
        return compressed(encoded)
