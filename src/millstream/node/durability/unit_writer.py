"""Writes the units of a node into the store (``durability="epoch"``).

A unit gets its receipt when it is durable, in the bytes that its backups get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from millstream.checkpoints.records import compressed, delta_key
from millstream.errors import MillstreamError
from millstream.node.durability.base_writer import BaseWriter
from millstream.node.durability.write_queue import Entry, WriteQueue
from millstream.node.held_units import Unit
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.typed_errors import StoreWriteError, typed
from millstream.wire.net import Net
from millstream.wire.receipts import StoredRecord
from millstream.wire.timeouts import POLL_PAUSE

_EMPTY = StoredRecord("", 0)


class UnitWriter:
    """The units of a node on their way into the store."""

    def __init__(
        self,
        machine: NodeMachine,
        queue: WriteQueue,
        bases: BaseWriter,
        locks: Locks,
        net: Net,
    ) -> None:
        self._machine = machine
        self._queue = queue
        self._bases = bases
        self._locks = locks
        self._net = net
        self._problem: MillstreamError | None = None

    def enqueue(self, units: Iterable[Unit]) -> None:
        """Enqueue frozen units; each gets its receipt when it is durable."""
        machine = self._machine
        for unit in units:
            with self._locks.metadata:
                if unit.queued:
                    continue
                unit.queued = True
                if unit.fragment is not None and not unit.fragment:
                    machine.mark_stored(unit, _EMPTY)
                    continue
            id_, receipt = machine.id_of(unit.job), unit.receipt
            key = delta_key(
                receipt.epoch, machine.incarnation, receipt.try_, id_, unit.slots, machine.node
            )
            record = partial(self._record, unit)
            self._queue.enqueue(Entry((unit.job, unit.slots), key, record, self._on_stored(unit)))

    def _record(self, unit: Unit) -> bytes:
        return compressed(self._machine.encoded(unit))

    def _on_stored(self, unit: Unit) -> Callable[[StoredRecord | MillstreamError | None], None]:
        def on_stored(result: StoredRecord | MillstreamError | None) -> None:
            try:
                if isinstance(result, StoredRecord):
                    with self._locks.metadata:
                        self._machine.mark_stored(unit, result)
                        self._bases.add_delta_bytes(result.bytes)
                elif result is not None:
                    self._problem = result
            except Exception as problem:  # else others in the batch would wait for ever
                self._problem = typed(problem, StoreWriteError, "storing a unit")

        return on_stored

    def flush(self, seconds: float) -> None:
        """Enqueue what has to be durable, and wait for it, at most so long."""
        if self._problem is not None:
            raise self._problem
        self._bases.require_sound()
        waited = 0.0
        while units := self._unstored():
            self.enqueue(units)
            if waited >= seconds or self._problem is not None:
                return
            self._net.sleep(POLL_PAUSE)
            waited += POLL_PAUSE

    def _unstored(self) -> list[Unit]:
        with self._locks.metadata:
            return self._machine.unstored()
