"""Operators over columnar state: the built-in aggregates, and users' Arrow functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.keys import KeyTypeError, canonical_column, decode_keys
from millstream.state.blocks import KEY, SLOT
from millstream.state.column_fragments import ColumnFragment, widened_types
from millstream.state.columns import ColumnState, Read, rows_as_dicts
from millstream.state.values import ValueTypeError, value_text
from millstream.work.batches import aggregating, as_batch, concat_batches, concat_keys
from millstream.work.failures import calling, record_error
from millstream.work.keyed_values import group
from millstream.work.unit import Reduced, UnitContext, ttl_of


class _ColumnOperator:
    """What both share: looking up rows, and expiry of keys."""

    def __init__(self, job: JobVertex, slots: int, read: Read = rows_as_dicts) -> None:
        self._job = job
        self._slots = slots
        self._ttl = ttl_of(job)
        self.state = ColumnState(slots, read)

    def _idle(self, unit: UnitContext) -> list[Any]:
        if self._ttl is None:
            return []
        return self.state.idle_since(unit.slots, unit.time - self._ttl)

    def _find(self, keys: list[Any], idle: list[Any]) -> npt.NDArray[np.int64]:
        rows = self.state.find(keys)
        if idle:
            expired = set(idle)
            rows[[key in expired for key in keys]] = -1
        return rows

    def _forgotten(self, idle: list[Any], keys: list[Any]) -> list[Any]:
        if not idle:
            return []
        kept = set(keys)
        return [key for key in idle if key not in kept]


class AggregateOperator(_ColumnOperator):
    """Built-in aggregates, computed on columns."""

    def __init__(self, job: JobVertex, reducer: AggregateReducer, slots: int) -> None:
        super().__init__(job, slots, self._read)
        self._aggregates = reducer.aggregates

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[ColumnFragment]:
        idle = self._idle(unit)
        if not blocks:
            return Reduced(ColumnFragment.without_rows(idle), [], 0)
        groups, distinct = group(concat_keys(self._job, [b.column(KEY) for b in blocks]))
        new = concat_batches(self._job, [_without(block, KEY, SLOT) for block in blocks])
        slots = np.zeros(len(distinct), np.int32)
        slots[groups] = np.concatenate([block.column(SLOT).to_numpy() for block in blocks])
        keys = decode_keys(distinct)
        rows = self._find(keys, idle)
        known = np.flatnonzero(rows >= 0)
        if len(known):
            base = self.state.take(rows[known])
            new = concat_batches(self._job, [base, new])
            groups = np.concatenate([known, groups])
        with aggregating(self._job, distinct):
            merged = self._aggregates.merge(new, groups, len(keys))
            results = self._aggregates.result(merged)
        self._check_types(merged.schema)
        output = pa.RecordBatch.from_arrays(
            [distinct, *results.columns], names=[KEY, *results.schema.names]
        )
        output = output.replace_schema_metadata({b"millstream.shape": _shape(results)})
        times = np.full(len(keys), unit.time, np.int64)
        fragment = ColumnFragment(keys, slots, merged, self._forgotten(idle, keys), times)
        return Reduced(fragment, [output], len(keys))

    def _check_types(self, found: pa.Schema) -> None:
        if self.state.schema is None:
            return
        try:
            widened_types(self.state.schema, found)
        except ValueTypeError as misfit:
            raise record_error(
                f"input of job {self._job.name!r}",
                None,
                f"changed its type: {misfit}",
                "give values of one type (cast them in the map)",
            ) from None

    def _read(self, rows: pa.RecordBatch, count: int) -> list[Any]:
        results = self._aggregates.result(rows)
        if results.schema.names == ["value"]:
            return list(results.column(0).to_pylist())
        return list(results.to_pylist())


def _shape(results: pa.RecordBatch) -> bytes:
    return b"pair" if results.schema.names == ["value"] else b"row"


def _without(batch: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in names])


class ArrowOperator(_ColumnOperator):
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
            return Reduced(ColumnFragment.without_rows(idle), [], 0)
        rows = concat_batches(self._job, [_without(block, SLOT) for block in blocks])
        _, distinct = group(rows.column(KEY))
        keys = decode_keys(distinct)
        found = self._find(keys, idle)
        known = np.flatnonzero(found >= 0)
        old = self._old_rows(distinct, found, known)
        with calling(self._role, self._function):
            result = self._function(pa.Table.from_batches([rows]), old)
        state, outputs = self._checked(result)
        fragment = self._fragment(state, distinct, keys, idle, unit.time)
        return Reduced(fragment, outputs, len(keys))

    def _old_rows(
        self, distinct: pa.Array, found: npt.NDArray[np.int64], known: npt.NDArray[np.int64]
    ) -> pa.Table:
        if self.state.schema is None:
            return pa.table({KEY: distinct.slice(0, 0)})
        kept = self.state.take(found[known])
        keys = distinct.take(pa.array(known))
        return pa.Table.from_arrays([keys, *kept.columns], names=[KEY, *kept.schema.names])

    def _checked(self, result: Any) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise record_error(
                self._role,
                self._function,
                f"returned {value_text(result)}",
                "return two tables: the new state rows, and the outputs or None",
            )
        state, outputs = (as_batch(part) for part in result)
        if outputs is None and result[1] is not None:
            raise record_error(
                self._role,
                self._function,
                f"returned the outputs {value_text(result[1])}",
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
        self,
        state: pa.RecordBatch,
        distinct: pa.Array,
        keys: list[Any],
        idle: list[Any],
        time: int,
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
        gone = set(keys) - set(kept)
        # Also an expired key that has new rows: its old row is still in the state.
        known = (self.state.find(keys) >= 0).tolist()
        forgotten = [key for key, old in zip(keys, known, strict=True) if old and key in gone]
        forgotten += self._forgotten(idle, keys)
        if not kept:
            return ColumnFragment.without_rows(forgotten)
        rows = self._as_before(_without(state, KEY))
        slots = slot_of(hash_column(column), self._slots)
        return ColumnFragment(kept, slots, rows, forgotten, np.full(len(kept), time, np.int64))

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
        before = self.state.schema
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


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "(none)"
