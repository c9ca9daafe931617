"""The units of a try that owners have frozen, and which copies agree with them.

Receipts of all nodes are compared at once, in arrays: a run may have thousands of nodes, and each
of them sends receipts in every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.coordinator.holders import Holders
from millstream.ring.masks import any_in_row, expanded
from millstream.wire.commit import UNITS
from millstream.wire.receipt_tables import FROZEN, ReceivedTypes, Table, joined
from millstream.wire.receipts import Receipt, Receipts

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Received = Sequence[tuple[int, Receipts]]
"""What was received, each with the number of its node."""


@dataclass(frozen=True)
class UnitCounts:
    """What the receipts of a job count together."""

    rows: int = 0
    keys: int = 0
    outputs: int = 0
    seconds: float = 0.0


class Frozen:
    """The unit that the owner of each slot has frozen, for each job.

    ``by_job`` has the number of its receipt for each slot. Units are compared by fingerprints.
    """

    NONE = -1

    def __init__(
        self,
        jobs: Iterable[int],
        holders: Holders,
        received: Received,
        at: tuple[int, int],
    ) -> None:
        """Receipts count if they are from owners of their slots, and of this epoch and try."""
        self.holders, self._received = holders, received
        slots = len(holders.owners)
        self.by_job: dict[int, Numbers] = {job: np.full(slots, self.NONE, np.int64) for job in jobs}
        table, sources = joined([each.tables.frozen for _, each in received], FROZEN)
        indexes = np.arange(len(table)) - np.searchsorted(sources, sources)
        valid = (table["epoch"] == at[0]) & (table["try_"] == at[1])
        table, sources, indexes = table[valid], sources[valid], indexes[valid]
        self._table, self._sources, self._indexes = table, sources, indexes
        nodes = np.array([node for node, _ in received], np.int64)[sources]
        starts, stops = table["start"].astype(np.int64), table["stop"].astype(np.int64)
        lengths, all_slots = stops - starts, expanded(starts, stops)
        rows = np.repeat(np.arange(len(table)), lengths)
        owned = holders.owners[all_slots] == nodes[rows]
        for job, numbers in self.by_job.items():
            mine = owned & (table["job"] == job)[rows]
            numbers[all_slots[mine]] = rows[mine]
        self._counts = np.zeros(len(table), np.bool_)
        self._counts[rows[owned]] = True
        self._first = np.flatnonzero(holders.owners[starts] == nodes)

    @cached_property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts that count."""
        return _Chosen(self, np.flatnonzero(self._counts))

    @property
    def of_first_slots(self) -> Sequence[Receipt]:
        """The receipts from the owners of their first slots: each unit once."""
        return _Chosen(self, self._first)

    def receipts_at(self, rows: Numbers) -> Iterator[Receipt]:
        """The receipts with some numbers."""
        for source, index in zip(
            self._sources[rows].tolist(), self._indexes[rows].tolist(), strict=True
        ):
            yield self._received[source][1].receipts[index]

    def counts(self) -> dict[int, UnitCounts]:
        """What the receipts of each job count."""
        return {job: _counted(self._table[self._counts_of(job)]) for job in self.by_job}

    @cached_property
    def types(self) -> dict[int, list[ReceivedTypes]]:
        """The types of the receipts of each job, each once for all nodes."""
        return {job: self._types_of(job) for job in self.by_job}

    def _types_of(self, job: int) -> list[ReceivedTypes]:
        rows = self._counts_of(job)
        pairs = np.stack([self._sources[rows], self._table["types"][rows]], axis=1)
        changes = any_in_row(np.diff(pairs, axis=0, prepend=-1) != 0)
        found: dict[tuple[bytes, bytes], ReceivedTypes] = {}
        for source, index in pairs[changes].tolist():
            types = self._received[source][1].tables.types[index]
            found.setdefault(types[:2], types)
        return list(found.values())

    def _counts_of(self, job: int) -> Flags:
        return np.asarray(self._counts & (self._table["job"] == job))

    def in_sync(self, committed: int) -> Flags:
        """The cells of the holders that would be in sync if the try were committed now.

        Owners are, if they have sent receipts; others if they were in sync before, and have a copy
        of every unit.
        """
        holders = self.holders
        reaches = [(node, each.tables.reach) for node, each in self._received]
        kept = holders.reached(reaches, committed)
        table, sources = joined([each.tables.copies for _, each in self._received], UNITS)
        for job in self.by_job:
            mine = table["job"] == job
            kept &= self._copied(job, table[mine], sources[mine])
        heard = np.zeros(holders.sorted.max(initial=0) + 2, np.bool_)  # the last one for NOBODY
        nodes = np.array([node for node, _ in self._received], np.int64)
        heard[nodes[nodes < len(heard) - 1]] = True
        kept |= holders.owning & heard[holders.sorted]
        return holders.cells(kept)

    def _copied(self, job: int, copies: Table, sources: Numbers) -> Flags:
        """Which cells, in the order of nodes, have a copy of what the owner has frozen."""
        holders, keys = self.holders, self.holders.keys
        nodes = np.array([node for node, _ in self._received], np.int64)
        offsets = nodes[sources] * len(holders.owners)
        first, stop = holders.bounds(offsets + copies["start"], offsets + copies["stop"])
        cells, lengths = expanded(first, stop), stop - first
        frozen = self.by_job[job][keys[cells] - np.repeat(offsets, lengths)]
        same = frozen != self.NONE
        same[same] = (
            self._table["fingerprint"][frozen[same]]
            == np.repeat(copies["fingerprint"], lengths)[same]
        )
        found = np.zeros(len(keys), np.bool_)
        found[cells[same]] = True
        return found

    def packed_units(self) -> bytes:
        """The units as packed in a commit, if every slot of every job has one."""
        tables = []
        for job, numbers in self.by_job.items():
            fingerprints = self._table["fingerprint"][numbers]
            starts = np.append(0, np.flatnonzero(fingerprints[1:] != fingerprints[:-1]) + 1)
            table = np.empty(len(starts), UNITS)
            table["job"], table["start"] = job, starts
            table["stop"] = np.append(starts[1:], len(numbers))
            table["fingerprint"] = fingerprints[starts]
            tables.append(table)
        return b"".join(table.tobytes() for table in tables)


class _Chosen(Sequence[Receipt]):
    """Some receipts, unpickled when they are needed: most runs need none of them."""

    def __init__(self, frozen: Frozen, rows: Numbers) -> None:
        self._frozen, self._rows = frozen, rows

    @cached_property
    def _found(self) -> list[Receipt]:
        return list(self._frozen.receipts_at(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._found[at]


def _counted(rows: Table) -> UnitCounts:
    return UnitCounts(
        int(rows["rows"].sum()),
        int(rows["keys"].sum()),
        int(rows["outputs"].sum()),
        float(rows["seconds"].sum()),
    )
