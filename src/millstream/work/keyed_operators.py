"""Operators over keyed state: reduce functions, and users' combinables."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from millstream.flow.reducers import (
    CombiningReducer,
    StatefulReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.state.immutable import SCALARS
from millstream.state.key_view import (
    Entries,
    KeyView,
    View,
    close_view,
    copy_entries,
    overwrites,
)
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.values import value_text
from millstream.work.failures import user_error
from millstream.work.function_outputs import encode_outputs, extend_outputs
from millstream.work.row_values import gather_values
from millstream.work.typed_state import StateTypeError, with_typed_state
from millstream.work.unit import Reduced, UnitContext, ttl_of
from millstream.work.unit_values import Groups, shares

ACCUMULATOR = "accumulator"
_EMPTY: Final[dict[Any, Any]] = {}
_MISSING: Final = object()
# Not None, which a look-up gives for a key that is not there.
_BARE: Final = SCALARS - {type(None)}
MakeState = Callable[[Callable[[Entries], Any]], KeyedState]
"""Makes the state of a job, given what users read in a key's entries."""


class KeyedOperator:
    """What operators over keyed state share: expiry of keys, outputs."""

    def __init__(self, job: JobVertex, state: KeyedState) -> None:
        self._job = job
        self._ttl = ttl_of(job)
        self.state = state

    def _idle(self, unit: UnitContext) -> dict[int, set[Any]]:
        if self._ttl is None:
            return {}
        idle = self.state.idle_since(unit.slots, unit.time - self._ttl)
        return {slot: set(keys) for slot, keys in idle.items()}

    def _encode(
        self, outputs: list[Any], ends: list[int], keys: list[Any], unit: UnitContext
    ) -> list[pa.RecordBatch]:
        if not outputs or not unit.read:
            return []
        function = getattr(self._job.reducer, "function", None)
        role = f"reducer of job {self._job.name!r}"
        return [
            encode_outputs(
                outputs,
                unit.output,
                lambda _: (role, function),
                lambda row: keys[bisect_right(ends, row)],
                self._job.row_reducer,
            )
        ]


class _ValueOperator(KeyedOperator, ABC):
    """Operators that act on the values of an epoch alone."""

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        idle = self._idle(unit)
        fragment = KeyedFragment(defaultdict(dict), defaultdict(dict), singles=defaultdict(dict))
        touched: defaultdict[int, list[Any]] = defaultdict(list)
        outputs: list[Any] = []
        ends: list[int] = []
        keys: list[Any] = []
        partial: set[int] = set()
        for share in shares(self._job, blocks):
            groups, slots = gather_values(self._job, share)
            partial |= self._call(groups, slots, idle, fragment, outputs, ends)
            self._touch(touched, groups, slots)
            keys += groups
        fragment.finish(partial)
        if self._ttl is not None:
            fragment.expire(idle, touched, unit.time)
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
    ) -> set[int]:
        """Reduce each key; ``ends`` gets the number of outputs after each.

        Returns the slots where a plain change leaves some entries of a key as they were.
        """

    def _touch(
        self, touched: defaultdict[int, list[Any]], groups: Groups, slots: Sequence[int]
    ) -> None:
        """Record which keys a share of a unit has touched."""
        if self._ttl is not None:
            for key, slot in zip(groups, slots, strict=True):
                touched[slot].append(key)


class FunctionOperator(_ValueOperator):
    """``reduce(key, values, state)``, once per key."""

    def __init__(
        self, job: JobVertex, reducer: StatefulReducer, make_state: MakeState = KeyedState
    ) -> None:
        super().__init__(job, make_state(copy_entries))
        self._function = with_typed_state(reducer.function, reducer.state_type, job.name)

    def _call(
        self,
        groups: Groups,
        slots: Sequence[int],
        idle: dict[int, set[Any]],
        fragment: KeyedFragment,
        outputs: list[Any],
        ends: list[int],
    ) -> set[int]:
        plain, other, bare = fragment.plain, fragment.other, fragment.singles
        masters, singles, name = self.state.tables(groups, slots)
        name = fragment.name if name is None else name
        keeps_singles = self.state.keeps_singles and self._ttl is None
        function, slow_path = self._function, self.state.slow_path
        yields = inspect.isgeneratorfunction(function)
        partial: set[int] = set()
        last: int | None = None
        key: Any = None
        try:
            # The hot loop of the whole system: calls are inlined here.
            for (key, values), slot in zip(groups.items(), slots, strict=True):
                if slot != last:
                    last = slot
                    master, single = masters.get(slot, _EMPTY), singles.get(slot, _EMPTY)
                    written, new = plain[slot], bare[slot]
                view: View
                base, old = None, single.get(key, _MISSING)
                if idle and key in idle.get(slot, ()):
                    old, view = _MISSING, {}
                elif old is not _MISSING:
                    view = {name: old}  # type: ignore[dict-item]  # singles have a name
                elif (base := master.get(key)) is None:
                    view = {}
                elif slow_path and key in slow_path.get(slot, ()):
                    view = KeyView(base)
                else:
                    view = base.copy()
                result = function(key, values, view)
                if yields:
                    outputs.extend(result)
                elif result is not None:
                    extend_outputs(outputs, result)
                ends.append(len(outputs))
                if base is None and keeps_singles and len(view) == 1:
                    if name is None:
                        name = _name_in(view)
                    value = _MISSING if name is None else view.get(name, _MISSING)
                    if type(value) in _BARE:
                        if value is not old:
                            new[key] = value
                        continue
                if old is not _MISSING:
                    base = {name: old}
                writes = overwrites(view, base) if type(view) is dict else None
                if writes is None and (change := close_view(view, base)) is not None:
                    if change.plain:
                        writes = change.writes
                    else:
                        other[slot][key] = change
                if writes:
                    written[key] = writes
                    if base is not None and list(writes) != list(base):
                        partial.add(slot)
            fragment.name = name
        except StateTypeError:
            raise
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", function, problem, value_text(key)
            ) from problem
        return partial


def _name_in(view: View) -> str | None:
    """The name of the one entry of a key, if it is text."""
    (name,) = view
    return name if type(name) is str else None


class CombiningOperator(_ValueOperator):
    """The user's combinable: merge accumulators, give the result of every key touched."""

    def __init__(
        self, job: JobVertex, reducer: CombiningReducer, make_state: MakeState = KeyedState
    ) -> None:
        super().__init__(job, make_state(self._read))
        self._combinable = reducer.combinable

    def _call(
        self,
        groups: Groups,
        slots: Sequence[int],
        idle: dict[int, set[Any]],
        fragment: KeyedFragment,
        outputs: list[Any],
        ends: list[int],
    ) -> set[int]:
        masters = self.state.lookups(groups, slots)
        merge, result = self._combinable.merge, self._combinable.result
        key: Any = None
        called: Any = merge
        try:
            for (key, parts), slot in zip(groups.items(), slots, strict=True):
                master = masters.get(slot)
                expired = idle and key in idle.get(slot, ())
                state = KeyView(None if master is None or expired else master.get(key))
                accumulators = iter([state[ACCUMULATOR], *parts] if ACCUMULATOR in state else parts)
                accumulator = next(accumulators)
                called = merge
                for other in accumulators:
                    accumulator = merge(accumulator, other)
                state[ACCUMULATOR] = accumulator
                called = result
                outputs.append((key, result(accumulator)))
                ends.append(len(outputs))
                fragment.add(slot, key, state.close())
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", called, problem, value_text(key)
            ) from problem
        return set()

    def _read(self, entries: Entries) -> Any:
        return self._combinable.result(copy_entries(entries)[ACCUMULATOR])
