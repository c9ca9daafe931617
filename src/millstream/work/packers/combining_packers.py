"""Accumulators of users' combinables.

Without windows, each value is added to the accumulator of its key as it comes: that needs no
numbers for keys, and no buffer of values.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.flow.reducers import CombiningReducer
from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import KEY, SLOT, keys_in_order
from millstream.state.values import value_text
from millstream.work.failures import user_error
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, encode_job_keys
from millstream.work.packers.aggregate_packer import FOLD_ROWS
from millstream.work.packers.collected_values import CollectedValues, as_items
from millstream.work.packers.placing import Placed, Placing, block_order, placed_again
from millstream.work.packers.value_lists import encode_lists, with_lists


class CombiningPacker:
    """Packs one accumulator for every key."""

    def __init__(self, job: JobVertex, reducer: CombiningReducer, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._combinable = reducer.combinable
        self._uniform = Uniform(job)
        self._accumulators: dict[Any, Any] = {}
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        items, stamps = as_items(values)
        items = self._uniform.checked(items, stamps is not None)
        self.rows += len(items)
        found, add, zero = self._accumulators, self._combinable.add, self._combinable.zero
        key: Any = None
        try:
            for key, value in items:
                found[key] = add(found[key] if key in found else zero(), value)
        except Exception as problem:
            encode_job_keys(self._job, [key])  # report a key that cannot be hashed
            raise user_error(
                f"add of the reducer of job {self._job.name!r}", add, problem, value_text(key)
            ) from problem

    def flush(self) -> pa.RecordBatch | None:
        if not self._accumulators:
            return None
        found, self._accumulators, self.rows = self._accumulators, {}, 0
        keys, slots, order = keys_in_order(encode_job_keys(self._job, list(found)), self._slots)
        values = list(found.values())
        lists = [[values[at]] for at in order.tolist()]
        return with_lists({KEY: keys, SLOT: slots}, *encode_lists(self._job, lists))


class WindowCombiningPacker:
    """Packs accumulators of a windowed job: one for each row that ``placing`` makes."""

    def __init__(
        self, job: JobVertex, reducer: CombiningReducer, slots: int, placing: Placing
    ) -> None:
        self._job = job
        self._slots = slots
        self._placing = placing
        self._combinable = reducer.combinable
        self._collected = CollectedValues(job)
        self._folded: list[tuple[Placed, list[Any]]] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        assert times is not None
        if not len(times):
            return
        self._collected.add(values, times)
        self.rows += len(times)
        if len(self._collected) >= FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not len(self._collected):
            return
        numbers, times, values = self._collected.take()
        placed = self._placing.place_values(numbers, times)
        add, zero = self._combinable.add, self._combinable.zero
        row = 0
        try:
            found = [zero() for _ in range(len(placed))]
            for row, value in zip(placed.groups.tolist(), values, strict=True):
                found[row] = add(found[row], value)
        except Exception as problem:
            raise self._error("add", add, problem, int(placed.keys[row])) from problem
        self._folded.append((placed, found))

    def _merged(self) -> tuple[Placed, list[Any]]:
        folded, self._folded = self._folded, []
        if len(folded) == 1:
            return folded[0]
        parts = [part for part, _ in folded]
        placed = placed_again(self._placing, [part.keys for part in parts], parts)
        accumulators = [accumulator for _, found in folded for accumulator in found]
        if placed.is_one_to_one:
            return placed, accumulators
        merge = self._combinable.merge
        merged: dict[int, Any] = {}
        row = 0
        try:
            for row, accumulator in zip(placed.groups.tolist(), accumulators, strict=True):
                merged[row] = merge(merged[row], accumulator) if row in merged else accumulator
        except Exception as problem:
            raise self._error("merge", merge, problem, int(placed.keys[row])) from problem
        return placed, [merged[row] for row in range(len(placed))]

    def flush(self) -> pa.RecordBatch | None:
        self._fold()
        if not self._folded:
            return None
        placed, accumulators = self._merged()
        self.rows = 0
        distinct = encode_job_keys(self._job, self._collected.take_keys())
        order, columns = block_order(distinct, placed, self._slots)
        lists = [[accumulators[at]] for at in order.tolist()]
        return with_lists(columns, *encode_lists(self._job, lists))

    def _error(self, part: str, function: object, problem: Exception, number: int) -> Exception:
        key = self._collected.key(number)
        role = f"{part} of the reducer of job {self._job.name!r}"
        return user_error(role, function, problem, value_text(key))
