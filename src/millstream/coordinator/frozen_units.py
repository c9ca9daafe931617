"""The units of a try that owners have frozen, and which copies agree with them.

Receipts of all nodes are compared at once, in arrays: a run may have thousands of nodes, and each
of them sends receipts in every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from millstream.coordinator.holders import Holders
from millstream.ring.masks import expanded
from millstream.wire.commit import UNITS, fingerprint
from millstream.wire.receipts import Receipt, Receipts

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Frozen:
    """The digest of the unit that the owner of each slot has frozen, for each job.

    Digests are numbered, so that they can be compared as arrays.
    """

    NONE = -1

    def __init__(
        self, jobs: Iterable[int], holders: Holders, receipts: Sequence[tuple[int, Receipt]]
    ) -> None:
        """Receipts come with the number of their node; those for slots of others do not count."""
        self.holders = holders
        slots = len(holders.owners)
        self.by_job: dict[int, Numbers] = {job: np.full(slots, self.NONE, np.int64) for job in jobs}
        self._numbers: dict[str, int] = {}
        starts, stops = _bounds(receipt.slots for _, receipt in receipts)
        lengths, all_slots = stops - starts, expanded(starts, stops)
        nodes = np.array([node for node, _ in receipts], np.int64)
        owned = holders.owners[all_slots] == np.repeat(nodes, lengths)
        digests = np.array([self._number(receipt.digest) for _, receipt in receipts], np.int64)
        of_job = np.array([receipt.job for _, receipt in receipts], np.int64)
        for job, numbers in self.by_job.items():
            mine = owned & np.repeat(of_job == job, lengths)
            numbers[all_slots[mine]] = np.repeat(digests, lengths)[mine]
        self.receipts = [receipts[at][1] for at in np.unique(_sources(lengths)[owned]).tolist()]
        """The receipts that count."""
        first = np.flatnonzero(holders.owners[starts] == nodes).tolist()
        self.of_first_slots = [receipts[at][1] for at in first]
        """The receipts from the owners of their first slots: each unit once."""

    def _number(self, digest: str) -> int:
        return self._numbers.setdefault(digest, len(self._numbers))

    def in_sync(self, received: Iterable[tuple[int, Receipts]], committed: int) -> Flags:
        """The cells of the holders that would be in sync if the try were committed now.

        Owners are, if they have sent receipts; others if they were in sync before, and have a copy
        of every unit. What was ``received`` comes with the number of its node.
        """
        holders, nodes = self.holders, list(received)
        kept = self._complete(nodes, committed)
        for job in self.by_job:
            kept &= self._copied(job, nodes)
        heard = np.isin(holders.sorted, [node for node, _ in nodes])
        kept |= heard & (holders.order % holders.width == 0)
        cells = np.zeros(holders.table.size, np.bool_)
        cells[holders.order] = kept
        return cells.reshape(holders.table.shape)

    def _complete(self, nodes: list[tuple[int, Receipts]], committed: int) -> Flags:
        """Which cells, in the order of nodes, were complete through the newest commit."""
        slots = len(self.holders.owners)
        reaches = [(node, receipts.reach) for node, receipts in nodes]
        offsets = np.array([node * slots for node, reach in reaches for _ in reach], np.int64)
        starts = offsets + np.array([at for _, reach in reaches for at, _ in reach], np.int64)
        enough = np.array([v >= committed for _, reach in reaches for _, v in reach], np.bool_)
        # A run reaches up to the next one, or to the last slot of its node.
        last = np.append(offsets[1:] != offsets[:-1], True) if len(offsets) else enough
        stops = np.where(last, offsets + slots, np.append(starts[1:], 0))
        first, stop = self._cells(starts[enough], stops[enough])
        edges = np.zeros(len(self.holders.keys) + 1, np.int64)
        np.add.at(edges, first, 1)
        np.add.at(edges, stop, -1)
        return np.asarray(np.cumsum(edges[:-1]) > 0)

    def _copied(self, job: int, nodes: list[tuple[int, Receipts]]) -> Flags:
        """Which cells, in the order of nodes, have a copy of what the owner has frozen."""
        slots, keys = len(self.holders.owners), self.holders.keys
        copies = [
            (node * slots, copy, self._numbers[copy.digest])
            for node, receipts in nodes
            for copy in receipts.copies
            if copy.job == job and copy.digest in self._numbers
        ]
        starts, stops = _bounds(copy.slots for _, copy, _ in copies)
        offsets = np.array([offset for offset, _, _ in copies], np.int64)
        first, stop = self._cells(offsets + starts, offsets + stops)
        cells, lengths = expanded(first, stop), stop - first
        frozen = self.by_job[job][keys[cells] - np.repeat(offsets, lengths)]
        digests = np.array([digest for _, _, digest in copies], np.int64)
        same = frozen == np.repeat(digests, lengths)
        found = np.zeros(len(keys), np.bool_)
        found[cells[same]] = True
        return found

    def _cells(self, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        """The cells, in the order of nodes, of ranges of slots of nodes."""
        keys = self.holders.keys
        return np.searchsorted(keys, starts), np.searchsorted(keys, stops)

    def packed_units(self) -> bytes:
        """The units as packed in a commit, if every slot of every job has one."""
        fingerprints = np.array([fingerprint(digest) for digest in self._numbers], np.uint64)
        tables = []
        for job, numbers in self.by_job.items():
            starts = np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)
            table = np.empty(len(starts), UNITS)
            table["job"], table["start"] = job, starts
            table["stop"] = np.append(starts[1:], len(numbers))
            table["fingerprint"] = fingerprints[numbers[starts]]
            tables.append(table)
        return b"".join(table.tobytes() for table in tables)


def _bounds(slots: Iterable[range]) -> tuple[Numbers, Numbers]:
    bounds = np.array([(run.start, run.stop) for run in slots], np.int64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def _sources(lengths: Numbers) -> Numbers:
    """For each element of expanded runs, the index of its run."""
    return np.repeat(np.arange(len(lengths)), lengths)
