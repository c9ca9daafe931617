"""The operator of reduce functions with timers.

In an epoch the function is called first, once for each key that has values. Then the timers that
are due fire, in the order of their time, their key (as blocks are ordered) and their name: those
that waited before the epoch, and those that were set in it. A timer that is set while timers fire,
for a time already reached, takes its place in this order.

A timer that fires counts as a touch of its key, so that its key does not expire in that epoch.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import DataError, Place
from millstream.flow.functions import Function, name_of, place_of
from millstream.flow.reducers import StatefulReducer
from millstream.flow.row_reducer import users_function
from millstream.flow.vertices import JobVertex
from millstream.ring.hashing import hash_column
from millstream.ring.keys import encode_keys
from millstream.ring.strides import strides
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import NEWEST
from millstream.state.key_view import Change, Entries
from millstream.state.keyed import KeyedState, Lookup
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.timers import (
    DOMAINS,
    TimedView,
    TimerClock,
    TimerEntry,
    read_entries,
    timer_of,
)
from millstream.state.values import value_text
from millstream.work.failures import user_error
from millstream.work.firing_key import FiringKey
from millstream.work.function_outputs import encode_outputs, extend_outputs
from millstream.work.job_clock import JobClock
from millstream.work.keyed_operators import KeyedOperator, MakeState
from millstream.work.row_values import gather_values
from millstream.work.typed_state import StateTypeError, with_typed_state
from millstream.work.unit import Reduced, UnitContext
from millstream.work.unit_values import newest_times, shares

MOST_IN_AN_EPOCH: Final = 100_000
"""How many timers of a key may fire in the epoch in which ``on_timer`` set them."""


class TimerLoopError(DataError):
    """The timers of a key set each other for times already reached, without an end."""

    def __init__(
        self, job: str, key: str, timer: str, function: str, place: Place | None, most: int
    ) -> None:
        super().__init__(job, key, timer, function, place, most)
        self.job, self.key, self.timer = job, key, timer
        self.function, self.place, self.most = function, place, most

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        after = "the epoch" if self.epoch is None else f"epoch {self.epoch}"
        return (
            f"{where}on_timer of job {self.job!r}, {self.function}, set more than {self.most} "
            f"timers for key {self.key} that were due at once, the last one {self.timer!r}; set "
            f"them for times that are still to come, such as after=; {after} was not applied"
        )


class _Fire(NamedTuple):
    """A timer that is due; what comes before ``key`` is its place in the order."""

    at: int
    slot: int
    hash: int
    text: str  # of the key: structs whose fields are null in other places have one hash
    name: str
    time: str
    number: int  # so that keys are never compared
    key: Any
    entry: TimerEntry
    is_new: bool = False  # set by on_timer, in this epoch


class TimerOperator(KeyedOperator):
    """``reduce(key, values, state)`` once per key, and ``on_timer(key, timer, state)``."""

    def __init__(
        self, job: JobVertex, reducer: StatefulReducer, make_state: MakeState = KeyedState
    ) -> None:
        super().__init__(job, make_state(read_entries))
        assert reducer.on_timer is not None
        self._index = self.state.index_timers()
        kind, name = reducer.state_type, job.name
        self._function = with_typed_state(reducer.function, kind, name)
        self._on_timer = with_typed_state(reducer.on_timer, kind, name)

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        due = self._due(unit)
        idle = self._idle(unit)
        for key, slot in zip(due.keys, due.slots, strict=True):
            if slot in idle:
                idle[slot].discard(key)
        clock = _clock_of(self._job, blocks, unit)
        epoch = _Epoch(self._job, self._function, self._on_timer, self.state, clock, idle)
        for share in shares(self._job, blocks):
            epoch.reduce(share)
        reduced = len(epoch.outputs)
        epoch.fire(due)
        if self._ttl is not None:
            epoch.fragment.expire(idle, epoch.touched, unit.time)
        return Reduced(epoch.fragment, self._batches(epoch, reduced, unit), len(epoch.keys))

    def _due(self, unit: UnitContext) -> _Due:
        """The timers of a unit that waited before the epoch and are due in it."""
        clock = unit.clock or JobClock()
        due = _Due()
        for time in DOMAINS:
            until = unit.time if time == "processing" else clock.watermark
            for slot, at, key, entry in self._index.due(unit.slots, time, until):
                due.add(slot, at, key, entry)
        return due

    def _batches(self, epoch: _Epoch, reduced: int, unit: UnitContext) -> list[pa.RecordBatch]:
        """The outputs of both functions; an error names the one that gave them."""
        if not epoch.outputs or not unit.read:
            return []

        def blame(row: int) -> tuple[str, object]:
            if row < reduced:
                return f"reducer of job {self._job.name!r}", self._function
            return f"on_timer of job {self._job.name!r}", self._on_timer

        return [
            encode_outputs(epoch.outputs, unit.output, blame, epoch.key_of, self._job.row_reducer)
        ]


class _Due:
    """Timers that are due, in columns: a million of them may be."""

    def __init__(self) -> None:
        self.slots = array("q")
        self.times = array("q")
        self.keys: list[Any] = []
        self.entries: list[TimerEntry] = []

    def add(self, slot: int, at: int, key: Any, entry: TimerEntry) -> None:
        self.slots.append(slot)
        self.times.append(at)
        self.keys.append(key)
        self.entries.append(entry)

    def in_order(self, kind: pa.DataType | None) -> Iterator[list[_Fire]]:
        """The timers in the order in which they fire, some thousand at a time."""
        if not self.keys:
            return
        parts = [hash_column(encode_keys(self.keys[at], kind)) for at in strides(len(self.keys))]
        hashes = np.concatenate(parts)
        columns = [np.frombuffer(self.times, np.int64), np.frombuffer(self.slots, np.int64), hashes]
        order = self._without_ties(np.lexsort(columns[::-1]), columns)
        for part in strides(len(order)):
            numbers = order[part]
            yield list(map(self._fire, numbers.tolist(), hashes[numbers].tolist()))

    def _without_ties(self, order: Ints, columns: Sequence[Ints]) -> Ints:
        """An order in which timers of one time and hash are in that of their keys and names."""
        tied = np.ones(len(order) - 1, dtype=bool)
        for column in columns:
            in_order = column[order]
            tied &= in_order[1:] == in_order[:-1]
        bounds = np.flatnonzero(np.diff(tied, prepend=False, append=False)).tolist()
        for start, last in zip(bounds[::2], bounds[1::2], strict=True):
            run = order[start : last + 1].tolist()
            order[start : last + 1] = sorted(run, key=self._place)
        return order

    def _place(self, number: int) -> tuple[str, str, str]:
        """The place of a timer among those of one time and hash."""
        _, time, name = self.entries[number]
        return repr(self.keys[number]), name, time

    def _fire(self, number: int, hash: int) -> _Fire:
        entry = self.entries[number]
        return _Fire(
            self.times[number],
            self.slots[number],
            hash,
            *self._place(number),
            number,
            self.keys[number],
            entry,
        )


class _Epoch:
    """The calls of both functions in one unit, and what they changed."""

    def __init__(
        self,
        job: JobVertex,
        function: Function,
        on_timer: Function,
        state: KeyedState,
        clock: TimerClock,
        idle: Mapping[int, set[Any]],
    ) -> None:
        self._job = job
        self._function = function
        self._on_timer = on_timer
        self._state = state
        self._clock = clock
        self._idle = idle
        self._masters: Mapping[int, Lookup] = {}
        self._set = _Due()  # by the reduce function, and due in this epoch
        self._pending: list[_Fire] = []
        self._firing: dict[tuple[int, Any], FiringKey] = {}
        self._fired_anew: Counter[Any] = Counter()
        self._number = 0
        self.fragment = KeyedFragment()
        self.touched: defaultdict[int, list[Any]] = defaultdict(list)
        self.outputs: list[Any] = []
        self.keys: list[Any] = []
        self._ends: list[int] = []

    def key_of(self, row: int) -> Any:
        """The key that an output is of."""
        return self.keys[int(np.searchsorted(self._ends, row, side="right"))]

    # -- values --------------------------------------------------------------------------

    def reduce(self, blocks: Sequence[pa.RecordBatch]) -> None:
        """Call the reduce function for each key of a share of the unit."""
        groups, slots = gather_values(self._job, blocks, self._clock.settled)
        newest = newest_times(blocks)
        self._masters = self._state.lookups(groups, slots)
        for (key, values), slot in zip(groups.items(), slots, strict=True):
            view = TimedView(self._base(slot, key), self._clock, newest=newest.get(key))
            change = self._called(self._function, "reducer", key, values, view)
            self.fragment.add(slot, key, change)
            self._touch(slot, key)
            for entry, at in view.newly_set:
                if at <= self._clock.reached(entry[1]):
                    self._set.add(slot, at, key, entry)

    def _base(self, slot: int, key: Any) -> Entries | None:
        """The committed entries of a key, unless it has expired."""
        if self._idle and key in self._idle.get(slot, ()):
            return None
        master = self._masters.get(slot)
        return None if master is None else master.get(key)

    def _called(
        self, function: Function, role: str, key: Any, given: Any, view: TimedView
    ) -> Change | None:
        """Call a function, take its outputs, and return what it changed."""
        try:
            result = function(key, given, view)
            extend_outputs(self.outputs, result)
            return view.close()
        except StateTypeError:
            raise
        except Exception as problem:
            of_job = f"{role} of job {self._job.name!r}"
            raise user_error(of_job, function, problem, value_text(key)) from problem

    def _touch(self, slot: int, key: Any) -> None:
        """A function has been called for a key."""
        self.keys.append(key)
        self._ends.append(len(self.outputs))
        self.touched[slot].append(key)

    # -- timers --------------------------------------------------------------------------

    def fire(self, waiting: _Due) -> None:
        """Call ``on_timer`` for all timers that are due, in order."""
        kind = self._job.key_type
        # In order, so that it is a heap.
        self._pending = [fire for part in self._set.in_order(kind) for fire in part]
        self._number = len(waiting.keys) + len(self._pending)
        for part in waiting.in_order(kind):
            self._masters = self._state.lookups(
                [fire.key for fire in part], [fire.slot for fire in part]
            )
            for fire in part:
                self._fire_pending(until=fire)
                self._fire(fire)
        self._fire_pending()
        for (slot, key), firing in self._firing.items():
            self.fragment.add(slot, key, firing.change())

    def _fire_pending(self, until: _Fire | None = None) -> None:
        """Fire the timers that were set in this epoch, up to a place in the order."""
        while self._pending and (until is None or self._pending[0][:6] < until[:6]):
            self._fire(heappop(self._pending))

    def _count(self, fire: _Fire) -> None:
        self._fired_anew[fire.slot, fire.key] += 1
        if self._fired_anew[fire.slot, fire.key] > MOST_IN_AN_EPOCH:
            function = users_function(self._on_timer)
            raise TimerLoopError(
                self._job.name,
                value_text(fire.key),
                fire.name,
                name_of(function),
                place_of(function),
                MOST_IN_AN_EPOCH,
            )

    def _fire(self, fire: _Fire) -> None:
        """Fire a timer, unless it was cancelled or set anew meanwhile."""
        firing = self._firing.get((fire.slot, fire.key))
        if firing is None:
            base = self._base(fire.slot, fire.key)
            before = self.fragment.take(fire.slot, fire.key)
            if before is None:
                self._fire_first(fire, base or {})
                return
            firing = self._firing[fire.slot, fire.key] = FiringKey(base, before)
        if firing.waiting.get(fire.entry) == fire.at:
            view = firing.view(self._clock, fire.entry)
            firing.take(self._call_on_timer(fire, view), view)

    def _fire_first(self, fire: _Fire, entries: Entries) -> None:
        """Fire a timer of a key that has not changed in this epoch."""
        if entries.get(fire.entry) == fire.at:
            view = TimedView(entries, self._clock, fired=fire.entry)
            self.fragment.add(fire.slot, fire.key, self._call_on_timer(fire, view))

    def _call_on_timer(self, fire: _Fire, view: TimedView) -> Change | None:
        if fire.is_new:
            self._count(fire)
        timer = timer_of(fire.entry, fire.at)
        change = self._called(self._on_timer, "on_timer", fire.key, timer, view)
        self._touch(fire.slot, fire.key)
        for entry, at in view.newly_set:
            if at <= self._clock.reached_by_new(entry[1]):
                self._number += 1
                new = fire._replace(
                    at=at, name=entry[2], time=entry[1], number=self._number, entry=entry
                )
                heappush(self._pending, new._replace(is_new=True))
        return change


def _clock_of(job: JobVertex, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> TimerClock:
    clock = unit.clock or JobClock()
    has_event_time = (
        job.time is not None or clock.timed or any(NEWEST in block.schema.names for block in blocks)
    )
    return TimerClock(unit.time, clock.watermark, clock.closed, has_event_time)
