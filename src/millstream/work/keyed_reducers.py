"""Reducers over Python state: reduce functions, and users' combinables."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from millstream.flow.reducers import (
    CombiningReducer,
    StatefulReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.ring.masks import SlotMask
from millstream.state.deltas import decode_keyed, encode_keyed, merge_keyed
from millstream.state.keyed import (
    Change,
    KeyedFragment,
    KeyedState,
    State,
    View,
    close_view,
)
from millstream.state.records import encode_records
from millstream.state.values import ValueTypeError, shown
from millstream.work.collector import without_collector
from millstream.work.failures import record_error, user_error
from millstream.work.unit import Reduced, UnitContext, ttl_of
from millstream.work.unit_values import Groups, gathered

ACCUMULATOR = "accumulator"


class _KeyedReducing(ABC):
    """What the reducers over Python state share: gathering, expiry, outputs."""

    step = 2_000

    def __init__(self, job: JobVertex, state: KeyedState | None) -> None:
        self._job = job
        self._ttl = ttl_of(job)
        self._state = KeyedState() if state is None else state

    def apply(self, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        self._state.apply(fragment, slots)

    def by_slot(self, fragment: KeyedFragment) -> KeyedFragment:
        return fragment

    def encode(self, fragment: KeyedFragment) -> bytes:
        return encode_keyed(fragment)

    def decode(self, data: bytes | pa.Buffer) -> KeyedFragment:
        with without_collector():
            return decode_keyed(data)

    def part(self, fragment: KeyedFragment, slots: range) -> KeyedFragment:
        return fragment.part(slots)

    def merge(self, fragments: Sequence[KeyedFragment]) -> KeyedFragment:
        with without_collector():
            return merge_keyed(fragments)

    def snapshot(self, slots: range) -> KeyedFragment:
        with without_collector():
            return self._state.snapshot(slots)

    def drop(self, slots: SlotMask) -> None:
        self._state.drop(slots)

    def get(self, slot: int, key: Any) -> Any:
        return self._state.get(slot, key)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        yield from self._state.items(slots)

    def keys(self, slots: SlotMask) -> int:
        return self._state.keys(slots)

    def _idle(self, unit: UnitContext) -> dict[int, set[Any]]:
        if self._ttl is None:
            return {}
        idle = self._state.idle_since(unit.slots, unit.time - self._ttl)
        return {slot: set(keys) for slot, keys in idle.items()}

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        idle = self._idle(unit)
        fragment = KeyedFragment(defaultdict(dict), defaultdict(dict))
        touched: defaultdict[int, list[Any]] = defaultdict(list)
        outputs: list[Any] = []
        ends: list[int] = []
        keys: list[Any] = []
        for groups, slots in gathered(self._job, blocks):
            self._call(groups, slots, idle, fragment, outputs, ends)
            self._touch(touched, groups, slots)
            keys += groups
        self._finish(fragment, touched, idle, unit.time)
        batches = self._encode(outputs, ends, keys, unit)
        return Reduced(fragment, batches, len(keys))

    @abstractmethod
    def _call(
        self,
        groups: Groups,
        slots: Sequence[int],
        idle: dict[int, set[Any]],
        fragment: KeyedFragment,
        outputs: list[Any],
        ends: list[int],
    ) -> None:
        """Reduce each key; ``ends`` tells how many outputs there are by then."""

    def _finish(
        self,
        fragment: KeyedFragment,
        touched: defaultdict[int, list[Any]],
        idle: dict[int, set[Any]],
        time: int,
    ) -> None:
        """Add to a unit's changes what the time-to-live makes of them."""
        if self._ttl is None:
            return
        for slot, keys in idle.items():
            plain, other = fragment.plain.get(slot, {}), fragment.other.setdefault(slot, {})
            for key in keys:
                written = other[key].writes if key in other else plain.pop(key, {})
                other[key] = Change(written, cleared=True, plain=False)
            touched[slot].extend(keys.difference(touched[slot]))
        if touched:
            fragment.visits.append((time, dict(touched)))

    def _touch(
        self, touched: defaultdict[int, list[Any]], groups: Groups, slots: Sequence[int]
    ) -> None:
        """Note which keys a share of a unit has touched."""
        if self._ttl is not None:
            for key, slot in zip(groups, slots, strict=True):
                touched[slot].append(key)

    def _encode(
        self, outputs: list[Any], ends: list[int], keys: list[Any], unit: UnitContext
    ) -> list[pa.RecordBatch]:
        if not outputs or not unit.read:
            return []
        try:
            return [encode_records(outputs, unit.output)]
        except ValueTypeError as misfit:
            key = keys[bisect_right(ends, misfit.row)]
            function = getattr(self._job.reducer, "function", None)
            raise record_error(
                f"reducer of job {self._job.name!r}",
                function,
                f"gave a wrong type for key {shown(key)}: {misfit}",
                "give values of that type, or declare output=",
            ) from None


class FunctionReducing(_KeyedReducing):
    """``reduce(key, values, state)``, once per key."""

    def __init__(
        self, job: JobVertex, reducer: StatefulReducer, state: KeyedState | None = None
    ) -> None:
        super().__init__(job, state)
        self._function = reducer.function

    def _call(
        self,
        groups: Groups,
        slots: Sequence[int],
        idle: dict[int, set[Any]],
        fragment: KeyedFragment,
        outputs: list[Any],
        ends: list[int],
    ) -> None:
        plain, other = fragment.plain, fragment.other
        masters = self._state.reading(groups, slots)
        function, slow_path = self._function, self._state.slow_path
        yields = inspect.isgeneratorfunction(function)
        key: Any = None
        try:
            # The loop of the whole system: what can be done here in line is.
            for (key, values), slot in zip(groups.items(), slots, strict=True):
                master = masters.get(slot)
                base = None if master is None else master.get(key)
                view: View
                if base is None or (idle and key in idle.get(slot, ())):
                    base, view = None, {}
                elif slow_path and key in slow_path.get(slot, ()):
                    view = State(base)
                else:
                    view = base.copy()
                result = function(key, values, view)
                if yields:
                    outputs.extend(result)
                elif result is not None:
                    _extend(outputs, result)
                change = close_view(view, base)
                if change is not None:
                    if change.plain:
                        plain[slot][key] = change.writes
                    else:
                        other[slot][key] = change
                ends.append(len(outputs))
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", function, problem, shown(key)
            ) from problem


def _extend(outputs: list[Any], result: Any) -> None:
    """A generator or list gives several outputs; anything else is one."""
    if isinstance(result, list) or hasattr(result, "__next__"):
        outputs.extend(result)
    else:
        outputs.append(result)


class CombiningReducing(_KeyedReducing):
    """The user's combinable: merge accumulators, give the result of every key touched."""

    def __init__(
        self, job: JobVertex, reducer: CombiningReducer, state: KeyedState | None = None
    ) -> None:
        super().__init__(job, state)
        self._combinable = reducer.combinable

    def _call(
        self,
        groups: Groups,
        slots: Sequence[int],
        idle: dict[int, set[Any]],
        fragment: KeyedFragment,
        outputs: list[Any],
        ends: list[int],
    ) -> None:
        masters = self._state.reading(groups, slots)
        merge, result = self._combinable.merge, self._combinable.result
        key: Any = None
        called: Any = merge
        try:
            for (key, parts), slot in zip(groups.items(), slots, strict=True):
                master = masters.get(slot)
                expired = idle and key in idle.get(slot, ())
                state = State(None if master is None or expired else master.get(key))
                accumulators = iter([state[ACCUMULATOR], *parts] if ACCUMULATOR in state else parts)
                accumulator = next(accumulators)
                called = merge
                for other in accumulators:
                    accumulator = merge(accumulator, other)
                state[ACCUMULATOR] = accumulator
                called = result
                outputs.append((key, result(accumulator)))
                ends.append(len(outputs))
                change = state.settle()
                if change is not None and change.plain:
                    fragment.plain[slot][key] = change.writes
                elif change is not None:
                    fragment.other[slot][key] = change
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", called, problem, shown(key)
            ) from problem

    def get(self, slot: int, key: Any) -> Any:
        entries = self._state.get(slot, key)
        return None if entries is None else self._combinable.result(entries[ACCUMULATOR])

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        for key, entries in self._state.items(slots):
            yield key, self._combinable.result(entries[ACCUMULATOR])
