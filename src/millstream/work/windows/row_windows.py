"""The base of operators whose windows belong to single keys: sessions, counts, and global windows.

Each key has some rows. An epoch reads the rows of the keys that it touches, and replaces them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.state.panes.keys import Ids
from millstream.state.panes.row_fragments import KeyRows, RowFragment, no_rows
from millstream.state.panes.rows import RowState
from millstream.work.late_outputs import with_late
from millstream.work.maybe_late import LateValues
from millstream.work.unit import Reduced, UnitContext, ttl_of
from millstream.work.windows.block_keys import key_ids
from millstream.work.windows.forms import Closed, Form

A = TypeVar("A")
_TOUCHED = "touched"


class RowOperator(ABC, Generic[A]):
    """A job whose keys have rows; ``names`` are the columns beside their accumulators.

    With a time-to-live, rows also have the time of their key's last value.
    """

    names: tuple[str, ...] = ()

    def __init__(self, job: JobVertex, form: Form[A]) -> None:
        assert job.windowing is not None
        self._job = job
        self._windowing = job.windowing
        self._form = form
        self._ttl = ttl_of(job)
        kept = self.names if self._ttl is None else (*self.names, _TOUCHED)
        self.state: RowState[A] = RowState(form.algebra, kept, self._read)

    @abstractmethod
    def _step(self, new: KeyRows[A], unit: UnitContext) -> tuple[Ids, KeyRows[A], list[Closed[A]]]:
        """The keys that an epoch changes, all their rows, and the windows that it closes.

        The new rows are in the order of their arrival.
        """

    @abstractmethod
    def _read(self, found: KeyRows[A]) -> Any:
        """What users read in the rows of one key."""

    @abstractmethod
    def _columns(self, block: pa.RecordBatch) -> dict[str, Any]:
        """The columns of the new rows of a block."""

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[RowFragment[A]]:
        state = self.state
        state.compact_keys()
        given = [block for block in blocks if block.num_rows]
        new, late = self._without_late(self._taken(given), given, unit)
        if new.rows is not None:
            state.check(new.rows)  # here, because a committed epoch must not be rejected
        ids, rows, closed = self._step(new, unit)
        if self._ttl is not None:
            rows = self._with_touches(rows, new.ids, unit)
            ids = np.union1d(ids, self._idle(unit, self._ttl))
        full = [one for one in closed if len(one.table)] if unit.read else []
        outputs = self._form.outputs(full, state.keys, unit.output) if full else []
        fragment, keys = state.fragment(ids, rows), len(np.unique(new.ids))
        return Reduced(fragment, with_late(outputs, late.records), keys, late.tallies)

    def _known(self, ids: Ids, unit: UnitContext) -> KeyRows[A]:
        """The rows of some keys, which are distinct and in order; idle keys have none."""
        found = self.state.of(ids)
        if self._ttl is None:
            return found
        fresh = found.columns[_TOUCHED] >= unit.time - self._ttl
        found = found.chosen(self._form.algebra, fresh)
        return KeyRows(found.ids, {name: found.columns[name] for name in self.names}, found.rows)

    def _with_touches(self, rows: KeyRows[A], seen: Ids, unit: UnitContext) -> KeyRows[A]:
        """Rows with the time of their key's last value: now, or as before."""
        before = self.state.of(np.unique(rows.ids))
        touched = np.full(len(rows), unit.time, np.int64)
        given = ~np.isin(rows.ids, seen)  # keys that only emitted a result
        touched[given] = before.columns[_TOUCHED][np.searchsorted(before.ids, rows.ids[given])]
        return KeyRows(rows.ids, {**rows.columns, _TOUCHED: touched}, rows.rows)

    def _idle(self, unit: UnitContext, ttl: int) -> Ids:
        """The keys without a value for longer than the time-to-live."""
        ids, [touched] = self.state.where(unit.slots, _TOUCHED)
        return np.unique(ids[touched < unit.time - ttl])

    def _without_late(
        self, new: KeyRows[A], blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> tuple[KeyRows[A], LateValues]:
        """The rows that windows include, and the late ones."""
        return new, LateValues()

    def _taken(self, given: Sequence[pa.RecordBatch]) -> KeyRows[A]:
        """The rows of all blocks, concatenated."""
        if not given:
            return no_rows(self.names)
        ids = np.concatenate(key_ids(self._job, self.state.keys, given))
        columns = [self._columns(block) for block in given]
        return KeyRows(
            ids,
            {name: np.concatenate([found[name] for found in columns]) for name in self.names},
            self._form.algebra.concat([self._form.read(block) for block in given]),
        )
