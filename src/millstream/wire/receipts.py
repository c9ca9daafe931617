"""Receipts: what a node reports to the coordinator about one epoch and try."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord
from millstream.wire.load_report import ReportedLoad
from millstream.wire.packed_types import packed_type, unpacked_type
from millstream.wire.pickled_once import PickledOnce
from millstream.wire.receipt_tables import ReceiptTables, ReceivedTypes
from millstream.wire.request import Request
from millstream.work.job_clock import Tally

Runs = tuple[tuple[int, int], ...]
"""A value for every slot, as ``(first slot, value)`` wherever the value changes."""
NO_KEYS: Mapping[int, int] = {}


@dataclass(frozen=True)
class StoredRecord:
    """A durable record: its key in the store and its size; the key of an empty unit is empty."""

    key: str
    bytes: int


@dataclass(frozen=True)
class Receipt:
    """A node's acknowledgement that it has frozen (job, slots, epoch), and what it counted.

    ``key`` is one of the keys, for error messages.
    """

    job: int
    epoch: int
    try_: int
    slots: range
    digest: str  # of the unit's whole input, also in the receipt for a part of its slots
    rows: int
    keys: int = 0
    outputs: int = 0
    seconds: float = 0.0
    key_type: pa.DataType | None = None
    output: pa.Schema | None = None
    stored: StoredRecord | None = None
    tallies: tuple[Tally, ...] = ()
    key: str = ""

    def __getstate__(self) -> dict[str, Any]:
        key_type, output = packed_type(self.key_type), packed_type(self.output)
        return self.__dict__ | {"key_type": key_type, "output": output}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["key_type"] = unpacked_type(state["key_type"])
        state["output"] = unpacked_type(state["output"])
        self.__dict__.update(state)

    def part(self, slots: range) -> Receipt:
        """The receipt for some of its slots; rows and tallies are counted with the first slot."""
        if slots.start == self.slots.start:
            return replace(self, slots=slots)
        return replace(self, slots=slots, rows=0, tallies=())


@dataclass(frozen=True)
class CopyReceipt:
    """A backup's acknowledgement that it has a complete copy of a unit."""

    job: int
    slots: range
    digest: str


@dataclass
class WriteQueueCounts:
    """What a write queue has done so far."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    replaced: int = 0
    waited: int = 0
    serialise_seconds: float = 0.0
    store_seconds: float = 0.0


class NodeReport(NamedTuple):
    """The size of a node's state, its use of memory and store, and its load in the epoch."""

    state_keys: Mapping[int, int] = NO_KEYS
    memory: int = 0
    log_bytes: int = 0
    cold_keys: int = 0
    writes: WriteQueueCounts | None = None
    load: ReportedLoad | None = None

    def packed(self) -> tuple[object, ...]:
        """The report as plain values."""
        return (*self[:-1], None if self.load is None else self.load.packed())

    @classmethod
    def unpacked(cls, values: tuple[Any, ...]) -> NodeReport:
        """The report of these values."""
        *others, load = values
        return cls._make((*others, None if load is None else ReportedLoad.unpacked(load)))


class Receipts:
    """A node's receipts for one epoch and try; ``reach`` says how far its copies are complete.

    While something is ``pending``, more receipts will follow: the logs of slots it took over are
    being replayed, or the store is still writing. ``bases`` are the base records of the node. Who
    received them has their tables, and unpickles single receipts only if they are asked for.
    """

    def __init__(
        self,
        receipts: tuple[Receipt, ...],
        copies: tuple[CopyReceipt, ...],
        reach: Runs,
        pending: bool,
        report: NodeReport,
        bases: tuple[BaseRecord, ...] = (),
    ) -> None:
        self.pending, self.report, self.bases = pending, report, bases
        self._contents = (receipts, copies, reach)

    @cached_property
    def _contents(self) -> tuple[tuple[Receipt, ...], tuple[CopyReceipt, ...], Runs]:
        return pickle.loads(self._pickled)  # type: ignore[no-any-return]

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._contents, 5)

    @cached_property
    def tables(self) -> ReceiptTables:
        """Receipts, copies and reach as tables."""
        return ReceiptTables.of(*self._contents)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return self._contents[0]

    @property
    def copies(self) -> tuple[CopyReceipt, ...]:
        return self._contents[1]

    @property
    def reach(self) -> Runs:
        return self._contents[2]

    def __reduce__(self) -> tuple[Callable[..., Receipts], tuple[object, ...]]:
        tables = self.tables
        packed = (*tables[:3], *map(tuple, tables.types))
        return _arrived, (packed, self._pickled, self.pending, self.report.packed(), self.bases)


def _arrived(
    packed: tuple[Any, ...],
    pickled: bytes,
    pending: bool,
    report: tuple[Any, ...],
    bases: tuple[BaseRecord, ...],
) -> Receipts:
    frozen, copies, reach, *types = packed
    receipts = object.__new__(Receipts)
    receipts.pending, receipts.bases = pending, bases
    receipts.report = NodeReport.unpacked(report)
    receipts._pickled = pickled
    receipts.tables = ReceiptTables(frozen, copies, reach, tuple(map(ReceivedTypes._make, types)))
    return receipts


@dataclass(frozen=True)
class CollectReceipts(PickledOnce, Request[Receipts]):
    """Asks a node for its receipts of an epoch and try, under a ring version or a later one."""

    epoch: int
    try_: int
    ring: int


@dataclass(frozen=True)
class FetchReach(PickledOnce, Request[bytes]):
    """Asks a node how far its copies are complete; answered with rows of ``REACH``."""
