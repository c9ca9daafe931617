"""The ledger of epochs: admission, tries, receipts, commit. No I/O, no clock.

An epoch commits only when every slot of every job has a receipt from the node that owns the
slot now; a task that Spark calls finished proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millstream.coordinator.record import EpochRecord, JobTypes
from millstream.errors import MillstreamError
from millstream.node.messages import Receipt
from millstream.ring.ring import NodeId, Ring
from millstream.state.values import is_pickled, unify


class EpochOrderError(MillstreamError):
    """Epochs did not come in the order of their numbers."""

    def __init__(self, epoch: int, committed: int) -> None:
        super().__init__(epoch, committed)
        self.epoch, self.committed = epoch, committed

    def __str__(self) -> str:
        return (
            f"Spark offered epoch {self.epoch}, but the newest committed epoch is "
            f"{self.committed}; start with a new checkpoint folder"
        )


class TypeConflict(MillstreamError):
    """The first epoch's data do not agree on a type."""

    def __init__(self, job: str, what: str, found: str) -> None:
        super().__init__(job, what, found)
        self.job, self.what, self.found = job, what, found

    def __str__(self) -> str:
        return (
            f"job {self.job!r} has {self.what} of types {self.found}; give one type, or declare "
            "it with key_type= or output="
        )


class Ledger:
    """The coordinator's memory of epochs."""

    def __init__(
        self,
        incarnation: int,
        jobs: Mapping[int, str],
        ring: Ring,
        addresses: Mapping[NodeId, str],
        types: Mapping[int, JobTypes],
        committed: int = -1,
    ) -> None:
        self.incarnation = incarnation
        self.ring = ring
        self.committed = committed
        self._jobs = jobs
        self._addresses = addresses
        self._types = dict(types)
        self._record: EpochRecord | None = None
        self._receipts: dict[tuple[int, range], tuple[NodeId, Receipt]] = {}

    @property
    def record(self) -> EpochRecord | None:
        """The record of the epoch under way."""
        return self._record

    def admit(self, epoch: int, time: int) -> EpochRecord:
        """Fix the record of the next epoch."""
        if epoch != self.committed + 1:
            raise EpochOrderError(epoch, self.committed)
        self._record = EpochRecord(
            incarnation=self.incarnation,
            epoch=epoch,
            try_=0,
            committed=self.committed,
            time=time,
            ring=self.ring,
            addresses=self._addresses,
            types=dict(self._types),
        )
        self._receipts = {}
        return self._record

    def retry(self) -> EpochRecord:
        """Begin the next try of the epoch under way; what older tries froze is void."""
        assert self._record is not None
        self._record = replace(self._record, try_=self._record.try_ + 1)
        self._receipts = {}
        return self._record

    def receive(self, node: NodeId, receipts: tuple[Receipt, ...]) -> None:
        """Take a node's receipts; those of another epoch or try are not counted."""
        record = self._record
        for receipt in receipts:
            if record is not None and (receipt.epoch, receipt.try_) == (record.epoch, record.try_):
                self._receipts[(receipt.job, receipt.slots)] = (node, receipt)

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the try under way."""
        return [receipt for _, receipt in self._receipts.values()]

    def missing(self) -> dict[int, int]:
        """For each job, how many slots have no receipt from their present owner."""
        names = self.ring.nodes
        found: dict[int, int] = {}
        for job in self._jobs:
            receipted = np.zeros(self.ring.slots, dtype=bool)
            for (of_job, slots), (node, _) in self._receipts.items():
                if of_job == job and node in names:
                    part = slice(slots.start, slots.stop)
                    receipted[part] |= self.ring.table[part] == names.index(node)
            if not receipted.all():
                found[job] = int((~receipted).sum())
        return found

    def commit(self) -> EpochRecord:
        """Make the epoch under way the newest committed one, and keep the types it showed."""
        assert self._record is not None and not self.missing()
        record = self._record
        self._learn()
        self.committed = record.epoch
        self._record, self._receipts = None, {}
        return record

    def _learn(self) -> None:
        for job, name in self._jobs.items():
            known = self._types.get(job, JobTypes())
            mine = [receipt for receipt in self.receipts if receipt.job == job]
            key = known.key or self._key(name, mine)
            output = known.output or self._output(name, mine)
            self._types[job] = JobTypes(key, output)

    def _key(self, name: str, receipts: list[Receipt]) -> pa.DataType | None:
        kinds = [r.key_type for r in receipts if r.key_type is not None]
        distinct = {kind for kind in kinds if not pa.types.is_null(kind)}
        if len(distinct) > 1:
            raise TypeConflict(name, "keys", " and ".join(sorted(map(str, distinct))))
        return distinct.pop() if distinct else None

    def _output(self, name: str, receipts: list[Receipt]) -> pa.Schema | None:
        schemas = [r.output for r in receipts if r.output is not None]
        if not schemas or any(schema.names != schemas[0].names for schema in schemas):
            return None
        fields = []
        for at, column in enumerate(schemas[0].names):
            if any(is_pickled(schema.field(at)) for schema in schemas):
                return None
            kind = unify(schema.field(at).type for schema in schemas)
            if kind is None:
                found = sorted({str(schema.field(at).type) for schema in schemas})
                raise TypeConflict(name, f"outputs {column!r}", " and ".join(found))
            if pa.types.is_null(kind):
                return None
            fields.append(pa.field(column, kind))
        return pa.schema(fields, metadata=schemas[0].metadata)

    def check_types(self) -> None:
        """Raise if this epoch's receipts do not agree on types; call before anything is shown."""
        for job, name in self._jobs.items():
            mine = [receipt for receipt in self.receipts if receipt.job == job]
            self._key(name, mine)
            if self._types.get(job, JobTypes()).output is None:
                self._output(name, mine)
