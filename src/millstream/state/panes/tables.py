"""Tables of accumulators by key, and what is done with them: restrict, join, lay one over another.

A table never changes once it is made; so tables are shared freely, also between windows.
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
    """What tables need to know of accumulators, of which ``A`` holds one in each row.

    Rows that cannot be merged stay beside each other.
    """

    @property
    def merges(self) -> bool:
        """Whether rows can be merged."""

    def take(self, rows: A, at: Ids) -> A:
        """Some of the rows."""

    def concat(self, parts: Sequence[A]) -> A:
        """Rows behind each other."""

    def merge(self, rows: A, groups: Groups, n: int) -> A:
        """One row for each of n groups; earlier rows are the left ones. No row is changed."""

    def pack(self, rows: A) -> bytes:
        """Rows as bytes."""

    def unpack(self, data: bytes) -> A:
        """What ``pack`` took."""

    def values(self, rows: A) -> list[Any]:
        """What rows say to people: the result so far of each."""


@dataclass(frozen=True)
class Table(Generic[A]):
    """Accumulators by key; ids are in order. Of folded tables each id is there once."""

    ids: Ids
    rows: A

    def __len__(self) -> int:
        return len(self.ids)


def ordered(algebra: Algebra[A], ids: Ids, rows: A) -> Table[A]:
    """A table of rows that come in any order; equal ids keep theirs."""
    order = np.argsort(ids, kind="stable")
    if (order == np.arange(len(order))).all():
        return Table(ids, rows)
    return Table(ids[order], algebra.take(rows, order))


def folded(algebra: Algebra[A], ids: Ids, rows: A) -> Table[A]:
    """A table with one row for each id."""
    distinct, groups = np.unique(ids, return_inverse=True)
    if len(distinct) == len(ids):
        return ordered(algebra, ids, rows)
    return Table(distinct, algebra.merge(rows, groups, len(distinct)))


def join(algebra: Algebra[A], tables: Sequence[Table[A] | None]) -> Table[A] | None:
    """One table with all rows of an id merged, those of earlier tables first."""
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
