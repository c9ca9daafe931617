"""The state of windowed jobs and joins, read from a store.

A time window has a value for each key and pane, a join the values of both sides, and other windows
some rows for each key. Without the user's code its accumulators cannot be merged; so those that are
not merged yet are all returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import numpy as np

from millstream.checkpoints.manifest import JobMetadata
from millstream.flow.identity import has_time_windows, has_window_state
from millstream.ring.masks import SlotMask
from millstream.state.aggregates.grouping import Groups
from millstream.state.aggregates.naming import aggregates_in
from millstream.state.blocks import INTERNAL
from millstream.state.keyed import KeyedState
from millstream.state.pair import by_name, decode_pair
from millstream.state.panes.algebras import (
    AggregateAlgebra,
    ListAlgebra,
    Objects,
    TableAlgebra,
    objects,
)
from millstream.state.panes.fragments import decode_panes
from millstream.state.panes.joined import SideAlgebra, SideRows, waiting
from millstream.state.panes.row_fragments import decode_rows
from millstream.state.panes.rows import RowState
from millstream.state.panes.state import PaneState
from millstream.state.panes.tables import Algebra
from millstream.times import instant

_INSTANTS = ("start", "last")


class WindowedState(Protocol):
    """State that is restored from records, and read."""

    def decode(self, data: bytes) -> Any:
        """Read a record."""

    def apply(self, fragment: Any, slots: SlotMask) -> None:
        """Apply what a record has for some slots."""

    def drop(self, slots: SlotMask) -> None:
        """Drop the state of some slots."""

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """Each key with its state."""

    def rows(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The same as rows, of which a key may have several."""


def windowed_state(job: JobMetadata, slots: int) -> WindowedState | None:
    """Empty state of a job's form; None if this needs the user's code."""
    if job.form == "join":
        return _Joined(slots)
    algebra = _algebra_of(job.reducer)
    if algebra is None:
        return None
    in_panes = has_time_windows(job.windows)
    windows: WindowedState = _Panes(algebra, slots) if in_panes else _Rows(algebra)
    return _WithState(windows) if has_window_state(job.reducer) else windows


def _algebra_of(reducer: str) -> Algebra[Any] | None:
    if reducer == "a combinable":
        return _Accumulators()
    if reducer.startswith("a function "):
        return ListAlgebra()
    if reducer == "an Arrow function":
        return TableAlgebra()
    aggregates = aggregates_in(reducer)
    return None if aggregates is None else AggregateAlgebra(aggregates)


class _Accumulators(ListAlgebra):
    """Accumulators of a user's combinable; several of a pane stay separate."""

    def merge(self, rows: Objects, groups: Groups, n: int) -> Objects:
        found: list[list[Any]] = [[] for _ in range(n)]
        for group, accumulators in zip(groups.tolist(), rows.tolist(), strict=True):
            found[group].extend(accumulators)
        return objects(found)

    def unpack(self, data: bytes) -> Objects:
        return objects([[accumulator] for accumulator in super().unpack(data).tolist()])

    def values(self, rows: Objects) -> list[Any]:
        return [found[0] if len(found) == 1 else found for found in rows.tolist()]


class _Panes:
    """Sliding and tumbling windows."""

    def __init__(self, algebra: Algebra[Any], slots: int) -> None:
        self._algebra = algebra
        self._state = PaneState(algebra, slots)

    def decode(self, data: bytes) -> Any:
        return decode_panes(data, self._algebra)

    def apply(self, fragment: Any, slots: SlotMask) -> None:
        self._state.apply(fragment, slots)

    def drop(self, slots: SlotMask) -> None:
        self._state.drop(slots)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        for key, panes in self._state.committed.items(slots):
            yield key, {_instant(start): value for start, value in panes.items()}

    def rows(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any]]]:
        for key, panes in self.items(slots):
            for start, value in panes.items():
                yield key, {"pane": start, **_columns(value)}


class _WithState:
    """Windows beside keyed state of their reduce function."""

    def __init__(self, windows: WindowedState) -> None:
        self._windows = windows
        self._state = KeyedState()

    def decode(self, data: bytes) -> Any:
        return decode_pair(data, self._windows.decode, self._state.decode)

    def apply(self, fragment: Any, slots: SlotMask) -> None:
        self._windows.apply(fragment.first, slots)
        self._state.apply(fragment.second, slots)

    def drop(self, slots: SlotMask) -> None:
        self._windows.drop(slots)
        self._state.drop(slots)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        return by_name(("windows", "state"), self._windows.items(slots), self._state.items(slots))

    def rows(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any]]]:
        yield from self._windows.rows(slots)
        for key, entries in self._state.items(slots):
            yield key, {"state": entries}


class _Joined:
    """Joins."""

    def __init__(self, slots: int) -> None:
        self._state: PaneState[SideRows] = PaneState(SideAlgebra(), slots)

    def decode(self, data: bytes) -> Any:
        return decode_panes(data, SideAlgebra())

    def apply(self, fragment: Any, slots: SlotMask) -> None:
        self._state.apply(fragment, slots)

    def drop(self, slots: SlotMask) -> None:
        self._state.drop(slots)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        return waiting(self._state.committed, slots)

    def rows(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any]]]:
        for key, values in self.items(slots):
            for one in values:
                yield key, {"side": one.side, "time": _instant(one.time), "value": one.value}


class _Rows:
    """Windows of sessions and counts, and global ones."""

    def __init__(self, algebra: Algebra[Any]) -> None:
        self._algebra = algebra
        self._state: RowState[Any] = RowState(algebra, ())

    def decode(self, data: bytes) -> Any:
        return decode_rows(data, self._algebra)

    def apply(self, fragment: Any, slots: SlotMask) -> None:
        self._state.apply(fragment, slots)

    def drop(self, slots: SlotMask) -> None:
        self._state.drop(slots)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        found: dict[Any, list[dict[str, Any]]] = {}
        for key, row in self.rows(slots):
            found.setdefault(key, []).append(row)
        yield from found.items()

    def rows(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any]]]:
        found = self._state.of(np.sort(self._state.committed.within(slots)))
        if found.rows is None:
            return
        keys = self._state.keys.keys(found.ids)
        columns = {
            name.removeprefix(INTERNAL): _shown(name.removeprefix(INTERNAL), column.tolist())
            for name, column in found.columns.items()
        }
        for at, value in enumerate(self._algebra.values(found.rows)):
            extra = {name: column[at] for name, column in columns.items()}
            yield keys[at], {**extra, **_columns(value)}


def _shown(name: str, column: Sequence[int]) -> Sequence[Any]:
    return list(map(_instant, column)) if name in _INSTANTS else column


def _columns(value: Any) -> Mapping[str, Any]:
    """A value as columns: several aggregates have names of their own."""
    return value if isinstance(value, dict) else {"value": value}


def _instant(time: int) -> datetime | int:
    try:
        return instant(time)
    except OverflowError:
        return time
