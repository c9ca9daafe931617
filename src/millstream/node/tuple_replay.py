"""Replays of tuple logs after a takeover (``durability="interval"``). No I/O, no clock.

A backup holds the input of its primary. When it becomes the owner, it reduces that input, epoch by
epoch, before it accepts a feed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millstream.node.current_epoch import CurrentEpoch
from millstream.node.held_units import Unit, Work
from millstream.node.slot_store import SlotStore
from millstream.ring.masks import SlotMask, runs_of
from millstream.wire.receipts import Receipt
from millstream.work.unit import Reduced


@dataclass(frozen=True)
class Replay:
    """A tuple log to be reduced, for slots that this node owns now."""

    unit: Unit
    slots: range

    @property
    def work(self) -> Work:
        """The input of the reduction."""
        assert self.unit.log is not None
        return self.unit.log.part(self.slots)


class TupleReplay:
    """The tuple logs that a node has to replay."""

    def __init__(self, store: SlotStore, current: CurrentEpoch) -> None:
        self._store = store
        self._current = current

    def next(self) -> Replay | None:
        """The oldest tuple log of slots that this node owns, if there is one.

        Of other slots its state may be older or newer than the log, and a reduction over it would
        be wrong. So a committed unit is replayed in parts, one under way as a whole or not at all.
        """
        for epoch, unit in self._logs():
            runs = list(runs_of(self._due(epoch), unit.slots))
            if runs and (epoch <= self._current.committed.epoch or runs == [unit.slots]):
                return Replay(unit, runs[0])
        return None

    def _logs(self) -> Iterator[tuple[int, Unit]]:
        """The tuple logs that were not reduced yet, in the order of epochs."""
        for pending in self._store.pending_epochs.oldest_first():
            yield from ((pending.epoch, unit) for unit in pending.units if not unit.effective)
        current = self._current
        yield from ((current.epoch, unit) for unit in current.units if not unit.effective)

    def _due(self, epoch: int) -> SlotMask:
        """The slots of this node for which an epoch is next."""
        return self._store.holdings.owned & self._store.follows(epoch)

    def finish(self, replay: Replay, reduced: Reduced[Any], receipt: Receipt) -> None:
        """Take the result of a replay; its outputs are needed only while the epoch is under way."""
        unit = replay.unit
        if unit.effective:
            return
        if replay.slots == unit.slots:
            unit.receipt, unit.fragment, unit.outputs = receipt, reduced.fragment, reduced.outputs
        else:
            self._store.pending_epochs.divide(unit, Unit(receipt, fragment=reduced.fragment))
        self._store.merge()
