"""Writes base records: whole slots, in place of what has become a long chain of deltas."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from millstream.checkpoints.manifest import BaseRecord
from millstream.checkpoints.records import Part, base_key, pack
from millstream.errors import MillstreamError
from millstream.node.durability.write_queue import Entry, WriteQueue
from millstream.node.key_batches import split_by_keys
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.typed_errors import StoreWriteError, typed
from millstream.ring.masks import runs_of
from millstream.stores.store import StoreFullError, StoreUnavailableError
from millstream.wire.replication import SlotsNotHeldError

log = logging.getLogger("millstream")


@dataclass(frozen=True, kw_only=True)
class BaseOptions:
    """When a node writes base records: deltas outweigh the last bases, or are of many epochs."""

    ratio: float = 4.0
    least: int = 4 * 2**20
    epochs: int = 64
    record: int = 8 * 2**20


class BaseWriter:
    """The base records of a node."""

    def __init__(
        self, machine: NodeMachine, queue: WriteQueue, locks: Locks, options: BaseOptions
    ) -> None:
        self._machine = machine
        self._queue = queue
        self._locks = locks
        self._options = options
        self._delta_bytes = 0
        self._base_bytes = 0
        self._base_epoch = -1
        self._written = 0
        self._writing = False
        self._problem: MillstreamError | None = None

    def add_delta_bytes(self, count: int) -> None:
        """Count deltas that were written since the last bases."""
        with self._locks.metadata:
            self._delta_bytes += count

    def begin(self, epoch: int) -> None:
        """Count from here: the state was just restored from the store."""
        self._base_epoch, self._delta_bytes = epoch, 0

    @property
    def is_due(self) -> bool:
        """Whether the deltas since the last bases are too large, or of too many epochs."""
        options, epoch = self._options, self._machine.committed.epoch
        heavy = self._delta_bytes > max(options.least, options.ratio * self._base_bytes)
        return not self._writing and (heavy or epoch - self._base_epoch >= options.epochs)

    def require_sound(self) -> None:
        """Raise the error with which writing in the background failed."""
        if self._problem is not None:
            raise self._problem

    def write_all(self) -> None:
        """Write all slots that this node owns as they are now, a few at a time."""
        with self._locks.metadata:
            if self._writing:
                return
            self._writing = True
            owned = self._machine.store.holdings.owned & ~self._machine.unrestored()
            delta_bytes, epoch = self._delta_bytes, self._machine.committed.epoch
        try:
            bases = self.write(runs_of(owned, range(len(owned))))
            with self._locks.metadata:
                self._machine.bases = bases
                self._delta_bytes -= delta_bytes
                self._base_bytes = sum(base.bytes for base in bases)
                self._base_epoch = epoch
        except SlotsNotHeldError:
            return  # slots were reassigned meanwhile; retried after the next commit
        except (StoreFullError, StoreUnavailableError) as problem:
            # Deltas suffice until there are bases; retried after the next commit.
            log.warning(
                "node %s could not write base records, will retry: %s", self._machine.node, problem
            )
        except Exception as problem:
            self._problem = typed(problem, StoreWriteError, "writing base records")
        finally:
            self._writing = False

    def write(self, runs: Iterable[range]) -> list[BaseRecord]:
        """Write base records of some slots; all are durable when this returns."""
        bases: list[BaseRecord] = []
        for parts in self._records(runs):
            base, data = self._base(parts)
            # One at a time: a unit that is enqueued meanwhile must not wait for all of them.
            self._queue.write([Entry(("base", base.slots), base.key, partial(bytes, data))])
            bases.append(base)
        return bases

    def _records(self, runs: Iterable[range]) -> Iterator[list[Part]]:
        """The parts of each base record to be written."""
        for run in runs:
            parts: list[Part] = []
            with self._locks.metadata:
                keys = self._machine.store.most_keys(run)
            for slots in split_by_keys(run, keys):
                parts.extend(self._parts(slots))
                if sum(len(part.data) for part in parts) >= self._options.record:
                    yield parts
                    parts = []
            if parts:
                yield parts

    def _parts(self, slots: range) -> list[Part]:
        machine = self._machine
        with self._locks.both():
            snapshots = machine.snapshots(slots)
        return [
            Part(machine.id_of(job), snapshot.slots, snapshot.through, data)
            for snapshot in snapshots
            for job, data in snapshot.parts
            if machine.is_durable(job)
        ]

    def _base(self, parts: list[Part]) -> tuple[BaseRecord, bytes]:
        machine, data = self._machine, pack(parts)
        slots = range(parts[0].slots.start, parts[-1].slots.stop)
        self._written += 1
        epoch = machine.committed.epoch
        key = base_key(epoch, machine.incarnation, slots, machine.node, self._written)
        through = [part.through for part in parts]
        return BaseRecord(key, slots, min(through), max(through), len(data)), data
