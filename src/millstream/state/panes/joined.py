"""The state of a join: values of both sides as rows of panes, one for each value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, mask_of
from millstream.state.aggregates.grouping import Groups
from millstream.state.panes.algebras import Objects, objects
from millstream.state.panes.keys import Ids
from millstream.state.panes.state import Panes, PaneState
from millstream.state.panes.tables import Table, chosen
from millstream.state.pickling import dumps, loads

LEFT, RIGHT = "left", "right"


@dataclass(frozen=True)
class SideRows:
    """Values with their times and sides.

    ``closed`` is the watermark up to which windows had been closed when a value arrived.
    """

    left: npt.NDArray[np.bool_]
    times: npt.NDArray[np.int64]
    closed: npt.NDArray[np.int64]
    values: Objects

    def __len__(self) -> int:
        return len(self.times)


class SideAlgebra:
    """Rows of a join are raw: they are never merged."""

    merges = False

    def take(self, rows: SideRows, at: Ids) -> SideRows:
        return SideRows(rows.left[at], rows.times[at], rows.closed[at], rows.values[at])

    def concat(self, parts: Sequence[SideRows]) -> SideRows:
        if len(parts) == 1:
            return parts[0]
        return SideRows(
            np.concatenate([part.left for part in parts]),
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.closed for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def merge(self, rows: SideRows, groups: Groups, n: int) -> SideRows:
        raise TypeError("the values of a join are not merged")

    def pack(self, rows: SideRows) -> bytes:
        return dumps((rows.left, rows.times, rows.closed, rows.values.tolist()))

    def unpack(self, data: bytes) -> SideRows:
        left, times, closed, values = loads(data)
        return SideRows(left, times, closed, objects(values))

    def values(self, rows: SideRows) -> list[Any]:
        return list(rows.values)


class Waiting(NamedTuple):
    """A value of a join that may still match others."""

    side: str
    time: int
    value: Any


def waiting(
    panes: Panes[SideRows], slots: SlotMask, key: int | None = None
) -> Iterator[tuple[Any, list[Waiting]]]:
    """The values of each key of some slots, or of one key alone, in the order of their times."""
    algebra = SideAlgebra()
    tables: list[Table[SideRows]] = []
    for start in sorted(panes.starts):
        for table in panes.all_raw(start):
            wanted = slots[panes.keys.slots(table.ids)]
            if key is not None:
                wanted = wanted & (table.ids == key)
            found = chosen(algebra, table, wanted)
            tables += [] if found is None else [found]
    if not tables:
        return
    ids = np.concatenate([table.ids for table in tables])
    rows = algebra.concat([table.rows for table in tables])
    order = np.lexsort((rows.times, ids))
    distinct, starts = np.unique(ids[order], return_index=True)
    for name, part in zip(panes.keys.keys(distinct), np.split(order, starts[1:]), strict=True):
        these = algebra.take(rows, part)
        sides = np.where(these.left, LEFT, RIGHT).tolist()
        yield (
            name,
            list(map(Waiting, sides, these.times.tolist(), these.values.tolist())),
        )


class JoinState(PaneState[SideRows]):
    """The values of a join that may still match others, in panes; users read these."""

    def __init__(self, slots: int) -> None:
        super().__init__(SideAlgebra(), slots)

    def get(self, slot: int, key: Any) -> list[Waiting] | None:
        panes = self.committed
        known = panes.keys.known(key)
        if known is None:
            return None
        found = waiting(panes, mask_of(range(slot, slot + 1), self._slots), known)
        return next((values for _, values in found), None)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, list[Waiting]]]:
        return waiting(self.committed, slots)
