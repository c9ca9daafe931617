"""Reducing a unit's blocks against the job's state: what runs on a node.

One class for each form of reducer. ``reduce`` reads the committed state and returns a fragment
and the outputs, changing nothing; ``apply`` merges a sealed fragment.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    StatefulReducer,
)
from millstream.flow.workflow import JobVertex
from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.keys import KeyTypeError, canonical_column, decode_keys
from millstream.state.blocks import KEY, SLOT
from millstream.state.columns import ColumnFragment, ColumnState, widened_types
from millstream.state.keyed import (
    Change,
    Entries,
    KeyedFragment,
    KeyedState,
    State,
    View,
    close_view,
)
from millstream.state.pickling import dumps, loads
from millstream.state.records import encode_records
from millstream.state.values import ValueTypeError, shown
from millstream.work.failures import calling, record_error, user_error
from millstream.work.keying import group
from millstream.work.lists import decode_lists
from millstream.work.packing import concat_batches, concat_keys, key_type_of

ACCUMULATOR = "accumulator"


@dataclass(frozen=True)
class UnitContext:
    """What every copy of a unit must agree on: slots, time and types.

    ``read`` is false when nobody reads the job's outputs; they are then not kept.
    """

    slots: range
    time: int
    output: pa.Schema | None = None
    read: bool = True


F = TypeVar("F")


@dataclass(frozen=True)
class Reduced(Generic[F]):
    """The effect of a unit: a fragment, its outputs, and what was counted."""

    fragment: F
    outputs: list[pa.RecordBatch]
    keys: int


class Reducing(Protocol[F]):
    """A job's reducer with its state on one node."""

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[F]:
        """Compute the effect of a unit; the state is only read."""

    def apply(self, fragment: F, time: int) -> None:
        """Merge the fragment of a committed epoch."""

    def get(self, slot: int, key: Any) -> Any:
        """A key's committed state, or None."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All committed keys with their state."""

    @property
    def keys(self) -> int:
        """How many keys are committed."""


def reducing_for(job: JobVertex, slots: int) -> Reducing[Any]:
    """Make the running form of a job's reducer, with empty state."""
    if isinstance(job.reducer, StatefulReducer):
        return FunctionReducing(job, job.reducer, slots)
    if isinstance(job.reducer, CombiningReducer):
        return CombiningReducing(job, job.reducer, slots)
    if isinstance(job.reducer, AggregateReducer):
        return AggregateReducing(job, job.reducer, slots)
    return ArrowReducing(job, job.reducer, slots)


def _ttl(job: JobVertex) -> int | None:
    return None if job.ttl is None else round(job.ttl.total_seconds() * 1e6)


class _KeyedReducing:
    """What the reducers over Python state share: gathering, expiry, outputs."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._ttl = _ttl(job)
        self._state = KeyedState()

    def apply(self, fragment: KeyedFragment, time: int) -> None:
        self._state.apply(fragment, time)

    def get(self, slot: int, key: Any) -> Any:
        return self._state.get(slot, key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        yield from self._state.items(range(self._slots))

    @property
    def keys(self) -> int:
        return self._state.keys

    def _idle(self, unit: UnitContext) -> dict[int, set[Any]]:
        if self._ttl is None:
            return {}
        idle = self._state.idle_since(unit.slots, unit.time - self._ttl)
        return {slot: set(keys) for slot, keys in idle.items()}

    def _finish(
        self,
        changes: dict[int, dict[Any, Change]],
        groups: Mapping[Any, list[Any]],
        slots: Sequence[int],
        idle: dict[int, set[Any]],
    ) -> KeyedFragment:
        touched: dict[int, list[Any]] = {}
        if self._ttl is not None:
            for key, slot in zip(groups, slots, strict=True):
                touched.setdefault(slot, []).append(key)
            for slot, keys in idle.items():
                for key in keys:
                    change = changes.setdefault(slot, {}).get(key)
                    if change is None:
                        changes[slot][key] = Change({}, True)
                    else:
                        change.cleared = True
                touched.setdefault(slot, []).extend(k for k in keys if k not in groups)
        return KeyedFragment(changes, touched)

    def _base(self, slot: int, key: Any, idle: dict[int, set[Any]]) -> Entries | None:
        """The committed entries of a key; none if it has been idle for too long."""
        if idle and key in idle.get(slot, ()):
            return None
        master = self._state.slots.get(slot)
        return None if master is None else master.get(key)

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


def _gather(
    job: JobVertex, blocks: Sequence[pa.RecordBatch]
) -> tuple[dict[Any, list[Any]], list[int]]:
    """Bring the values of each key together, in the order of the blocks; and the keys' slots."""
    # Keys of several types would meet in the dictionary: 1, True and 1.0 are one key to it.
    key_type_of(job, [block.schema.field(KEY).type for block in blocks])
    groups: dict[Any, list[Any]] = {}
    slots: list[int] = []
    for block in blocks:
        keys = decode_keys(block.column(KEY))
        of_block = block.column(SLOT).to_numpy().tolist()
        if not groups:
            groups = dict(zip(keys, decode_lists(block), strict=True))
            if len(groups) == len(keys):
                slots = of_block
                continue
            groups = {}  # a key that comes twice: its values must be joined
        for key, slot, values in zip(keys, of_block, decode_lists(block), strict=True):
            known = groups.get(key)
            if known is None:
                groups[key] = values
                slots.append(slot)
            else:
                known.extend(values)
    return groups, slots


class FunctionReducing(_KeyedReducing):
    """``reduce(key, values, state)``, once per key."""

    def __init__(self, job: JobVertex, reducer: StatefulReducer, slots: int) -> None:
        super().__init__(job, slots)
        self._function = reducer.function

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        groups, slots = _gather(self._job, blocks)
        idle = self._idle(unit)
        changes: dict[int, dict[Any, Change]] = defaultdict(dict)
        outputs: list[Any] = []
        ends: list[int] = []
        function, masters, odd = self._function, self._state.slots, self._state.odd
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
                elif odd and key in odd:
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
                    changes[slot][key] = change
                ends.append(len(outputs))
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", function, problem, shown(key)
            ) from problem
        fragment = self._finish(changes, groups, slots, idle)
        batches = self._encode(outputs, ends, list(groups), unit)
        return Reduced(fragment, batches, len(groups))


def _extend(outputs: list[Any], result: Any) -> None:
    """A generator or list gives several outputs; anything else is one."""
    if isinstance(result, list) or hasattr(result, "__next__"):
        outputs.extend(result)
    else:
        outputs.append(result)


class CombiningReducing(_KeyedReducing):
    """The user's combinable: merge accumulators, give the result of every key touched."""

    def __init__(self, job: JobVertex, reducer: CombiningReducer, slots: int) -> None:
        super().__init__(job, slots)
        self._combinable = reducer.combinable

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        groups, slots = _gather(self._job, blocks)
        idle = self._idle(unit)
        changes: dict[int, dict[Any, Change]] = defaultdict(dict)
        outputs: list[Any] = []
        merge, result = self._combinable.merge, self._combinable.result
        key: Any = None
        called: Any = merge
        try:
            for (key, parts), slot in zip(groups.items(), slots, strict=True):
                state = State(self._base(slot, key, idle))
                accumulators = iter([state[ACCUMULATOR], *parts] if ACCUMULATOR in state else parts)
                accumulator = next(accumulators)
                called = merge
                for other in accumulators:
                    accumulator = merge(accumulator, other)
                state[ACCUMULATOR] = accumulator
                called = result
                outputs.append((key, result(accumulator)))
                change = state.settle()
                if change is not None:
                    changes[slot][key] = change
        except Exception as problem:
            raise user_error(
                f"reducer of job {self._job.name!r}", called, problem, shown(key)
            ) from problem
        fragment = self._finish(changes, groups, slots, idle)
        ends = list(range(1, len(outputs) + 1))
        batches = self._encode(outputs, ends, list(groups), unit)
        return Reduced(fragment, batches, len(groups))

    def get(self, slot: int, key: Any) -> Any:
        entries = self._state.get(slot, key)
        return None if entries is None else self._combinable.result(entries[ACCUMULATOR])

    def items(self) -> Iterator[tuple[Any, Any]]:
        # On copies: a result that sorts or pops must not reach the committed accumulator.
        for key, entries in self._state.items(range(self._slots)):
            yield key, self._combinable.result(loads(dumps(entries[ACCUMULATOR])))


class _ColumnReducing:
    """What the reducers over columns share."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._ttl = _ttl(job)
        self._state = ColumnState()

    def apply(self, fragment: ColumnFragment, time: int) -> None:
        self._state.apply(fragment, time)

    @property
    def keys(self) -> int:
        return self._state.keys

    def _idle(self, unit: UnitContext) -> list[Any]:
        if self._ttl is None:
            return []
        slots = np.arange(unit.slots.start, unit.slots.stop, dtype=np.int32)
        return self._state.idle_since(slots, unit.time - self._ttl)

    def _find(self, keys: list[Any], idle: list[Any]) -> npt.NDArray[np.int64]:
        rows = self._state.find(keys)
        if idle:
            expired = set(idle)
            rows[[key in expired for key in keys]] = -1
        return rows

    def _forgotten(self, idle: list[Any], keys: list[Any]) -> list[Any]:
        if not idle:
            return []
        kept = set(keys)
        return [key for key in idle if key not in kept]


class AggregateReducing(_ColumnReducing):
    """Built-in aggregates: everything on whole columns."""

    def __init__(self, job: JobVertex, reducer: AggregateReducer, slots: int) -> None:
        super().__init__(job, slots)
        self._aggregates = reducer.aggregates

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[ColumnFragment]:
        idle = self._idle(unit)
        if not blocks:
            nothing = ColumnFragment([], np.zeros(0, np.int32), None, idle)
            return Reduced(nothing, [], 0)
        groups, distinct = group(concat_keys(self._job, [b.column(KEY) for b in blocks]))
        new = concat_batches(self._job, [_without(block, KEY, SLOT) for block in blocks])
        slots = np.zeros(len(distinct), np.int32)
        slots[groups] = np.concatenate([block.column(SLOT).to_numpy() for block in blocks])
        keys = decode_keys(distinct)
        rows = self._find(keys, idle)
        known = np.flatnonzero(rows >= 0)
        if len(known):
            base = self._state.take(rows[known])
            new = concat_batches(self._job, [base, new])
            groups = np.concatenate([known, groups])
        with calling(f"reducer of job {self._job.name!r}", type(self._job.reducer)):
            merged = self._aggregates.merge(new, groups, len(keys))
            results = self._aggregates.result(merged)
        self._check_types(merged.schema)
        output = pa.RecordBatch.from_arrays(
            [distinct, *results.columns], names=[KEY, *results.schema.names]
        )
        output = output.replace_schema_metadata({b"millstream.shape": _shape(results)})
        fragment = ColumnFragment(keys, slots, merged, self._forgotten(idle, keys))
        return Reduced(fragment, [output], len(keys))

    def _check_types(self, found: pa.Schema) -> None:
        if self._state.schema is None:
            return
        try:
            widened_types(self._state.schema, found)
        except ValueTypeError as misfit:
            raise record_error(
                f"input of job {self._job.name!r}",
                None,
                f"changed its type: {misfit}",
                "give values of one type (cast them in the map)",
            ) from None

    def get(self, slot: int, key: Any) -> Any:
        rows = self._state.find([key])
        if rows[0] < 0:
            return None
        return self._values(self._state.take(rows))[0]

    def items(self) -> Iterator[tuple[Any, Any]]:
        for keys, rows in self._state.items():
            yield from zip(keys, self._values(rows), strict=True)

    def _values(self, rows: pa.RecordBatch) -> list[Any]:
        results = self._aggregates.result(rows)
        if results.schema.names == ["value"]:
            return list(results.column(0).to_pylist())
        return list(results.to_pylist())


def _shape(results: pa.RecordBatch) -> bytes:
    return b"pair" if results.schema.names == ["value"] else b"row"


def _without(batch: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in names])


class ArrowReducing(_ColumnReducing):
    """``reduce(rows, state)`` over tables; one state row per key."""

    def __init__(self, job: JobVertex, reducer: ArrowReducer, slots: int) -> None:
        super().__init__(job, slots)
        self._function = reducer.function
        self._role = f"reducer of job {job.name!r}"

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[ColumnFragment]:
        idle = self._idle(unit)
        if not blocks:
            nothing = ColumnFragment([], np.zeros(0, np.int32), None, idle)
            return Reduced(nothing, [], 0)
        rows = concat_batches(self._job, [_without(block, SLOT) for block in blocks])
        _, distinct = group(rows.column(KEY))
        keys = decode_keys(distinct)
        found = self._find(keys, idle)
        known = np.flatnonzero(found >= 0)
        old = self._old_rows(distinct, found, known)
        with calling(self._role, self._function):
            result = self._function(pa.Table.from_batches([rows]), old)
        state, outputs = self._checked(result)
        fragment = self._fragment(state, distinct, keys, idle)
        return Reduced(fragment, outputs, len(keys))

    def _old_rows(
        self, distinct: pa.Array, found: npt.NDArray[np.int64], known: npt.NDArray[np.int64]
    ) -> pa.Table:
        if self._state.schema is None:
            return pa.table({KEY: distinct.slice(0, 0)})
        kept = self._state.take(found[known])
        keys = distinct.take(pa.array(known))
        return pa.Table.from_arrays([keys, *kept.columns], names=[KEY, *kept.schema.names])

    def _checked(self, result: Any) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise record_error(
                self._role,
                self._function,
                f"returned {shown(result)}",
                "return two tables: the new state rows, and the outputs or None",
            )
        state, outputs = (_one_batch(part) for part in result)
        if outputs is None and result[1] is not None:
            raise record_error(
                self._role,
                self._function,
                f"returned the outputs {shown(result[1])}",
                "return them as a pyarrow.Table or RecordBatch, or None",
            )
        if state is None or KEY not in state.schema.names:
            raise record_error(
                self._role,
                self._function,
                "returned state rows without a column 'key'",
                "keep the key column in the state rows",
            )
        return state, [] if outputs is None or not outputs.num_rows else [outputs]

    def _fragment(
        self, state: pa.RecordBatch, distinct: pa.Array, keys: list[Any], idle: list[Any]
    ) -> ColumnFragment:
        column = self._state_keys(state.column(KEY), distinct.type)
        kept = decode_keys(column)
        if len(set(kept)) != len(kept) or not set(kept) <= set(keys):
            raise record_error(
                self._role,
                self._function,
                "returned state rows for a key twice, or for a key that has no new rows",
                "return at most one state row for each key of the new rows",
            )
        rest = _without(state, KEY)
        if kept:
            rest = self._as_before(rest)
        gone = set(keys) - set(kept)
        # Also a key that came back after it had expired: its old row is still there.
        known = (self._state.find(keys) >= 0).tolist()
        forgotten = [key for key, old in zip(keys, known, strict=True) if old and key in gone]
        forgotten += self._forgotten(idle, keys)
        slots = slot_of(hash_column(column), self._slots)
        return ColumnFragment(kept, slots, rest, forgotten)

    def _state_keys(self, column: pa.Array, expected: pa.DataType) -> pa.Array:
        try:
            keys = canonical_column(column)
        except KeyTypeError:
            keys = column
        # 1.0 equals the key 1, but has another hash and so another slot.
        if len(keys) and keys.type != expected and not pa.types.is_null(keys.type):
            raise record_error(
                self._role,
                self._function,
                f"returned state rows with keys of type {keys.type}, but they are {expected}",
                "keep the key column as it is",
            )
        return keys if keys.type == expected else keys.cast(expected)

    def _as_before(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        before = self._state.schema
        if before is None:
            return rows
        if set(rows.schema.names) == set(before.names):
            rows = rows.select(before.names)
        if (rows.schema.names, rows.schema.types) != (before.names, before.types):
            raise record_error(
                self._role,
                self._function,
                f"returned the state columns {_described(rows.schema)}, but they were "
                f"{_described(before)}",
                "return the same columns and types every time",
            )
        return rows

    def get(self, slot: int, key: Any) -> Any:
        rows = self._state.find([key])
        return None if rows[0] < 0 else self._values(self._state.take(rows), 1)[0]

    def items(self) -> Iterator[tuple[Any, Any]]:
        for keys, rows in self._state.items():
            yield from zip(keys, self._values(rows, len(keys)), strict=True)

    def _values(self, rows: pa.RecordBatch, count: int) -> list[Any]:
        # State of keys alone: a batch without columns knows no number of rows.
        return list(rows.to_pylist()) if rows.num_columns else [{} for _ in range(count)]


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "(none)"


def _one_batch(part: Any) -> pa.RecordBatch | None:
    if isinstance(part, pa.Table):
        batches = part.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=part.schema)
    return part if isinstance(part, pa.RecordBatch) else None
