"""What a node puts into the store: its units, and now and then its slots as a whole.

With ``durability="epoch"`` every unit is kept before its receipt, in the bytes that its backups
get. A base takes the place of what has become a long row of pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.checkpoints.manifest import BaseRecord
from millstream.checkpoints.records import Part, base_key, compressed, delta_key, pack
from millstream.errors import MillstreamError
from millstream.node.durability.write_queue import Entry, WriteQueue, typed
from millstream.node.held_units import Unit
from millstream.node.machine import NodeMachine
from millstream.ring.masks import runs_of
from millstream.ring.ring import partition_slots
from millstream.stores.store import StoreFullError, StoreUnavailableError
from millstream.wire.messages import Kept, SlotsNotHeldError
from millstream.wire.net import Net

log = logging.getLogger("millstream")

_NOTHING = Kept("", 0)
_LOOK_AGAIN = 0.001
# What is encoded in one go, while no other thread reduces: a few milliseconds.
_KEYS_AT_ONCE = 2_000


@dataclass(frozen=True)
class Locks:
    """A node's locks: ``state`` to reduce over the state or change it, ``metadata`` for promises.

    Where both are needed, ``state`` comes first.
    """

    state: AbstractContextManager[Any]
    metadata: AbstractContextManager[Any]


@dataclass(frozen=True, kw_only=True)
class BaseOptions:
    """When a node writes its slots as a whole: pieces outweigh the last base, or are many."""

    ratio: float = 4.0
    least: int = 4 * 2**20
    epochs: int = 64
    record: int = 8 * 2**20


class UnitWriter:
    """A node's units and bases on their way into the store."""

    def __init__(
        self,
        machine: NodeMachine,
        keeper: WriteQueue,
        locks: Locks,
        options: BaseOptions,
        net: Net,
    ) -> None:
        self._machine = machine
        self._net = net
        self._locks = locks
        self._options = options
        self._weight = 0
        self._base_weight = 0
        self._base_epoch = -1
        self._bases = 0
        self._writing = False
        self._problem: MillstreamError | None = None
        self.keeper = keeper

    # -- units ---------------------------------------------------------------------------

    def keep(self, units: Iterable[Unit]) -> None:
        """Queue frozen units; each is told when it is durable."""
        machine = self._machine
        for unit in units:
            with self._locks.metadata:
                if unit.queued:
                    continue
                unit.queued = True
                if unit.fragment is not None and not unit.fragment:
                    machine.kept(unit, _NOTHING)
                    continue
            id_, receipt = machine.id_of(unit.job), unit.receipt
            key = delta_key(
                receipt.epoch, machine.incarnation, receipt.try_, id_, unit.slots, machine.node
            )
            record = partial(self._record, unit)
            self.keeper.keep(Entry((unit.job, unit.slots), key, record, self._told(unit)))

    def _record(self, unit: Unit) -> bytes:
        return compressed(self._machine.encoded(unit))

    def _told(self, unit: Unit) -> Callable[[Kept | MillstreamError | None], None]:
        def done(result: Kept | MillstreamError | None) -> None:
            try:
                if isinstance(result, Kept):
                    with self._locks.metadata:
                        self._machine.kept(unit, result)
                        self._weight += result.bytes
                elif result is not None:
                    self._problem = result
            except Exception as problem:  # else others in the batch would wait for ever
                self._problem = typed(problem, "a unit")

        return done

    def catch_up(self, seconds: float) -> None:
        """See to it that what should be durable is, but do not wait for long."""
        if self._problem is not None:
            raise self._problem
        waited = 0.0
        while units := self._unstored():
            self.keep(units)
            if waited >= seconds or self._problem is not None:
                return
            self._net.sleep(_LOOK_AGAIN)
            waited += _LOOK_AGAIN

    def _unstored(self) -> list[Unit]:
        with self._locks.metadata:
            return self._machine.unstored()

    # -- bases ---------------------------------------------------------------------------

    def weigh(self, bytes_: int) -> None:
        """So much was put into the store since the last base."""
        with self._locks.metadata:
            self._weight += bytes_

    def begin(self, epoch: int) -> None:
        """Count from here: the state has just come from the store."""
        self._base_epoch, self._weight = epoch, 0

    @property
    def base_is_due(self) -> bool:
        """Whether the pieces since the last base are many, or weigh too much."""
        options, epoch = self._options, self._machine.committed.epoch
        heavy = self._weight > max(options.least, options.ratio * self._base_weight)
        return not self._writing and (heavy or epoch - self._base_epoch >= options.epochs)

    def write_bases(self) -> None:
        """Put all that this node owns into the store as it is now, a few slots at a time."""
        with self._locks.metadata:
            if self._writing:
                return
            self._writing = True
            owned = self._machine.store.holdings.owned & ~self._machine.lacking()
            weight, epoch = self._weight, self._machine.committed.epoch
        try:
            bases = self.bases_of(runs_of(owned, range(len(owned))))
            with self._locks.metadata:
                self._machine.bases = bases
                self._weight -= weight
                self._base_weight = sum(base.bytes for base in bases)
                self._base_epoch = epoch
        except SlotsNotHeldError:
            return  # slots went meanwhile; the next commit calls for bases again
        except (StoreFullError, StoreUnavailableError) as problem:
            # Pieces do until there are bases; the next commit calls for them again.
            log.warning("node %s could not write bases: %s", self._machine.node, problem)
        except Exception as problem:
            self._problem = typed(problem, "a base")
        finally:
            self._writing = False

    def bases_of(self, runs: Iterable[range]) -> list[BaseRecord]:
        """Write base records of some slots; all are durable when this returns."""
        bases: list[BaseRecord] = []
        for parts in self._lots(runs):
            base, data = self._base(parts)
            # One at a time: a unit that comes meanwhile must not wait for all of them.
            self.keeper.keep_all([Entry(("base", base.slots), base.key, partial(bytes, data))])
            bases.append(base)
        return bases

    def _lots(self, runs: Iterable[range]) -> Iterator[list[Part]]:
        """The parts of the base records to be written."""
        for run in runs:
            parts: list[Part] = []
            with self._locks.metadata:
                keys = self._machine.store.most_keys(run)
            for slots in cut(run, keys):
                parts.extend(self._parts(slots))
                if sum(len(part.data) for part in parts) >= self._options.record:
                    yield parts
                    parts = []
            if parts:
                yield parts

    def _parts(self, slots: range) -> list[Part]:
        machine = self._machine
        with self._locks.state, self._locks.metadata:
            views = machine.view(slots)
        return [
            Part(machine.id_of(job), view.slots, view.through, data)
            for view in views
            for job, data in view.parts
            if machine.is_durable(job)
        ]

    def _base(self, parts: list[Part]) -> tuple[BaseRecord, bytes]:
        machine, data = self._machine, pack(parts)
        slots = range(parts[0].slots.start, parts[-1].slots.stop)
        self._bases += 1
        epoch = machine.committed.epoch
        key = base_key(epoch, machine.incarnation, slots, machine.node, self._bases)
        through = [part.through for part in parts]
        return BaseRecord(key, slots, min(through), max(through), len(data)), data


def cut(slots: range, keys: int) -> Iterator[range]:
    """Cut slots into parts of few enough keys, if keys are spread evenly."""
    parts = max(1, min(len(slots), -(-keys // _KEYS_AT_ONCE)))
    for part in partition_slots(len(slots), parts):
        yield range(slots.start + part.start, slots.start + part.stop)
