"""When the timers of committed keys are due, by slot: derived from entries, never replicated.

Each copy of a slot derives it while it applies fragments. A time is stored once, with the timers
that are set for it. The times of a slot are a heap; a time without timers stays in it until it
comes first, or until such times outnumber the others: so indexing a timer hardly depends on
how many wait, and memory is proportional to those that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np

from millstream.state.collector import discard
from millstream.state.key_view import Entries
from millstream.state.timers import DOMAINS, TimeDomain, TimerEntry, is_timer

_SPARE: Final = 16
_NEVER: Final = 2**63 - 1  # also the end of a stream does not reach it
_FEW: Final = 64
_EMPTY: Final[Entries] = {}
_Waiting = tuple[Any, TimerEntry]
"""A key, and one of its timers."""


class _SlotTimes:
    """The timers of one slot by one clock."""

    __slots__ = ("by_time", "times")

    def __init__(self) -> None:
        # A time that only one timer is set for needs no sets.
        self.by_time: dict[int, _Waiting | dict[TimerEntry, set[Any]]] = {}
        self.times: list[int] = []

    @property
    def earliest(self) -> int:
        return self.times[0] if self.times else _NEVER

    def add(self, at: int, timer: _Waiting) -> None:
        known = self.by_time.get(at)
        if known is None:
            self.by_time[at] = timer
            heappush(self.times, at)
        elif known != timer:
            if not isinstance(known, dict):
                key, entry = known
                known = self.by_time[at] = {entry: {key}}
            key, entry = timer
            known.setdefault(entry, set()).add(key)

    def remove(self, at: int, timer: _Waiting) -> None:
        known = self.by_time.get(at)
        if isinstance(known, dict):
            key, entry = timer
            keys = known.get(entry, set())
            keys.discard(key)
            if not keys:
                known.pop(entry, None)
            if known:
                return
        elif known != timer:
            return
        del self.by_time[at]
        while self.times and self.times[0] not in self.by_time:
            heappop(self.times)
        if len(self.times) > 2 * len(self.by_time) + _SPARE:
            self.times = list(self.by_time)
            heapify(self.times)

    def due(self, until: int) -> Iterator[tuple[int, _Waiting]]:
        """The timers up to a time; the heap is only read."""
        found: set[int] = set()
        pending = [0]
        while pending:
            at = pending.pop()
            if at < len(self.times) and self.times[at] <= until:
                found.add(self.times[at])
                pending += (2 * at + 1, 2 * at + 2)
        for time in found:
            known = self.by_time.get(time)
            if isinstance(known, dict):
                yield from ((time, (key, entry)) for entry, keys in known.items() for key in keys)
            elif known is not None:
                yield time, known


class _DomainTimes:
    """The timers of a job by one clock; ``earliest`` has a time of each slot, none is earlier."""

    def __init__(self) -> None:
        self.slots: dict[int, _SlotTimes] = {}
        self.earliest = np.full(_FEW, _NEVER, np.int64)

    def change(self, slot: int, timer: _Waiting, old: int | None, new: int | None) -> None:
        times = self.slots.get(slot)
        if times is None:
            if new is None:
                return
            times = self.slots[slot] = _SlotTimes()
            self._reserve(slot)
        if old is not None:
            times.remove(old, timer)
        if new is not None:
            times.add(new, timer)
        elif not times.by_time:
            del self.slots[slot]
        self.earliest[slot] = times.earliest

    def _reserve(self, slot: int) -> None:
        if slot >= len(self.earliest):
            grown = np.full(max(slot + 1, 2 * len(self.earliest)), _NEVER, np.int64)
            grown[: len(self.earliest)] = self.earliest
            self.earliest = grown

    def drop(self, slots: Iterable[int]) -> None:
        for slot in slots:
            times = self.slots.pop(slot, None)
            if times is not None:
                discard(times.by_time)
                discard(times.times)
                self.earliest[slot] = _NEVER

    def due(self, slots: range, until: int) -> Iterator[tuple[int, int, _Waiting]]:
        reached = np.flatnonzero(self.earliest[slots.start : slots.stop] <= until) + slots.start
        for slot in reached.tolist():
            for at, timer in self.slots[slot].due(until):
                yield slot, at, timer


class TimerIndex:
    """When the timers of one job on one node are due."""

    def __init__(self) -> None:
        self._domains: dict[TimeDomain, _DomainTimes] = {time: _DomainTimes() for time in DOMAINS}

    def write(
        self, slot: int, master: Mapping[Any, Entries], writes: Mapping[Any, Entries]
    ) -> None:
        """Index what is about to be written over the entries of some keys of a slot."""
        for key, new in writes.items():
            for entry, at in new.items():
                if is_timer(entry):
                    self._change(slot, key, entry, master.get(key, _EMPTY).get(entry), at)

    def replace(
        self, slot: int, key: Any, old: Mapping[TimerEntry, int], new: Mapping[TimerEntry, int]
    ) -> None:
        """Index the timers of a key, which had others before."""
        for entry, at in old.items():
            if entry not in new:
                self._change(slot, key, entry, at, None)
        for entry, at in new.items():
            self._change(slot, key, entry, old.get(entry), at)

    def _change(
        self, slot: int, key: Any, entry: TimerEntry, old: int | None, new: int | None
    ) -> None:
        if old != new:
            self._domains[entry[1]].change(slot, (key, entry), old, new)

    def drop(self, slots: Iterable[int]) -> None:
        """Forget the timers of some slots."""
        chosen = list(slots)
        for times in self._domains.values():
            times.drop(chosen)

    def due(
        self, slots: range, time: TimeDomain, until: int
    ) -> Iterator[tuple[int, int, Any, TimerEntry]]:
        """The timers of some slots up to a time, in no order: slot, time, key and entry."""
        for slot, at, (key, entry) in self._domains[time].due(slots, until):
            yield slot, at, key, entry

    def __len__(self) -> int:
        """How many times are stored, those without timers included."""
        domains = self._domains.values()
        return sum(len(times.times) for domain in domains for times in domain.slots.values())
