"""Tables of accumulators by key, and operations on them: select, merge, overlay.

Tables are immutable, and so are shared freely, also between windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from millstream.state.aggregates.grouping import Groups
from millstream.state.panes.keys import Ids

A = TypeVar("A")


class Algebra(Protocol[A]):
    """The operations of tables on accumulators, of which ``A`` holds one in each row.

    Rows that cannot be merged are kept side by side.
    """

    @property
    def merges(self) -> bool:
        """Whether rows can be merged."""

    def take(self, rows: A, at: Ids) -> A:
        """Some of the rows."""

    def concat(self, parts: Sequence[A]) -> A:
        """Concatenate rows."""

    def merge(self, rows: A, groups: Groups, n: int) -> A:
        """One row for each of n groups; earlier rows are the left ones. No row is changed."""

    def pack(self, rows: A) -> bytes:
        """Rows as bytes."""

    def unpack(self, data: bytes) -> A:
        """Read what ``pack`` wrote."""

    def values(self, rows: A) -> list[Any]:
        """What users read in rows: the result so far of each."""


@dataclass(frozen=True)
class Table(Generic[A]):
    """Accumulators by key; ids are in order. In an aggregated table each id occurs once."""

    ids: Ids
    rows: A

    def __len__(self) -> int:
        return len(self.ids)


def ordered(algebra: Algebra[A], ids: Ids, rows: A) -> Table[A]:
    """A table of rows in any order; rows of equal ids keep theirs."""
    order = np.argsort(ids, kind="stable")
    if (order == np.arange(len(order))).all():
        return Table(ids, rows)
    return Table(ids[order], algebra.take(rows, order))


def aggregated(algebra: Algebra[A], ids: Ids, rows: A) -> Table[A]:
    """A table with the rows of each id merged into one."""
    distinct, groups = np.unique(ids, return_inverse=True)
    if len(distinct) == len(ids):
        return ordered(algebra, ids, rows)
    return Table(distinct, algebra.merge(rows, groups, len(distinct)))


def join(algebra: Algebra[A], tables: Sequence[Table[A] | None]) -> Table[A] | None:
    """Merge all rows of an id, those of earlier tables first."""
    given = [table for table in tables if table is not None and len(table)]
    if len(given) < 2:
        return given[0] if given else None
    ids = np.concatenate([table.ids for table in given])
    distinct, groups = np.unique(ids, return_inverse=True)
    rows = algebra.concat([table.rows for table in given])
    return Table(distinct, algebra.merge(rows, groups, len(distinct)))


def chosen(algebra: Algebra[A], table: Table[A] | None, mask: Any) -> Table[A] | None:
    """Some rows of a table, by a mask; None if there are none."""
    if table is None or mask.all():
        return table
    at = np.flatnonzero(mask)
    return Table(table.ids[at], algebra.take(table.rows, at)) if len(at) else None


def among(ids: Ids, others: Ids) -> Any:
    """For each id whether it is among others, which are in order."""
    if not len(others):
        return np.zeros(len(ids), bool)
    at = np.minimum(np.searchsorted(others, ids), len(others) - 1)
    return others[at] == ids


def without(algebra: Algebra[A], table: Table[A] | None, ids: Ids) -> Table[A] | None:
    """A table without the rows of some ids, which are in order."""
    return None if table is None else chosen(algebra, table, ~among(table.ids, ids))


def only(algebra: Algebra[A], table: Table[A] | None, ids: Ids) -> Table[A] | None:
    """The rows of a table that belong to some ids, which are in order."""
    return None if table is None else chosen(algebra, table, among(table.ids, ids))


def overlaid(algebra: Algebra[A], old: Table[A] | None, new: Table[A] | None) -> Table[A] | None:
    """Both tables, with the new rows in place of old ones of the same id."""
    if new is None:
        return old
    kept = without(algebra, old, new.ids)
    if kept is None:
        return new
    return ordered(
        algebra,
        np.concatenate([kept.ids, new.ids]),
        algebra.concat([kept.rows, new.rows]),
    )
