"""The feeder: sends the blocks of a reduce task to the nodes that own its slots.

A rejected or broken feed is retried inside the task with the current placement, without using up
Spark's attempts. The task fails if state is lost, if the node reports an error, or after a minute
without success.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.state.blocks import from_bytes, slices, to_bytes
from millstream.wire.blocks import BLOCK_SCHEMA, digest_of
from millstream.wire.calls import UnreachableError
from millstream.wire.epoch_record import EpochRecord, FetchRecord, JobTypes
from millstream.wire.feed import BrokenFeedError, End, Feed, FeedRefusedError
from millstream.wire.membership import Ping, ReportSlow, ReportUnreachable
from millstream.wire.net import Delivery, Net
from millstream.wire.timeouts import REPORT_TIMEOUT, ping_timeout

_GIVE_UP_AFTER = 60.0
_WAIT = 0.1
_SLOW_AFTER = 10.0


def fetch_record(net: Net, coordinator: str, epoch: int, try_: int) -> EpochRecord:
    """The record of an epoch, from the coordinator."""
    return net.call(coordinator, FetchRecord(epoch, try_))


@dataclass
class Feeder:
    """Feeds the units of one attempt of one task."""

    net: Net
    coordinator: str
    record: EpochRecord
    attempt: int

    def feed(self, job: int, slots: range, rows: pa.Table, read: bool) -> Iterator[pa.RecordBatch]:
        """Feed the blocks of one shuffle partition; yields the outputs, in the order of slots."""
        start, deadline, failures = slots.start, self.net.now() + _GIVE_UP_AFTER, 0
        while start < slots.stop:
            owner, share = _share(self.record, range(start, slots.stop))
            part = rows if share == slots else _cut(rows, share, counted=start == slots.start)
            try:
                outputs = self._feed_share(job, owner, share, part, read)
            except (FeedRefusedError, UnreachableError, BrokenFeedError) as problem:
                stale = isinstance(problem, FeedRefusedError) and problem.stale
                if stale or self.net.now() > deadline:
                    raise
                cut_off = isinstance(problem, UnreachableError) and not self._reaches(
                    owner, failures
                )
                failures = failures + 1 if cut_off else 0
                deadline += self._refresh(owner, failures)
                continue
            start, deadline, failures = share.stop, self.net.now() + _GIVE_UP_AFTER, 0
            yield from outputs

    def _feed_share(
        self, job: int, owner: NodeId, share: range, rows: pa.Table, read: bool
    ) -> list[pa.RecordBatch]:
        record = self.record
        header = self._header(job, share, rows, read)
        copies = []
        if record.logs:
            peers = dict.fromkeys(p for s in record.placement.shares(share) for p in s.copies)
            copies = [
                Delivery(record.addresses[peer], replace(header, copy=True))
                for peer in peers
                if peer != owner
            ]

        waiting = self.net.now()

        def abandoned() -> bool:
            nonlocal waiting
            try:
                now = fetch_record(self.net, self.coordinator, *record.at)
                if self.net.now() - waiting >= _SLOW_AFTER:
                    waiting = self.net.now()
                    what = f"a feed of epoch {record.epoch} has not been answered"
                    self.net.call(self.coordinator, ReportSlow(owner, None, what))
            except MillstreamError:
                return True
            return now.placement.owner(share.start) != owner

        primary = Delivery(record.addresses[owner], header)
        return self.net.feed(primary, copies, rows, end_of(rows), abandoned)

    def _reaches(self, owner: NodeId, failures: int) -> bool:
        """Whether a node whose feed broke answers a ping: then the link works."""
        try:
            self.net.call(self.record.addresses[owner], Ping(), ping_timeout(failures))
        except UnreachableError:
            return False
        return True

    def _refresh(self, owner: NodeId, failures: int) -> float:
        """Fetch the current placement; returns how long the coordinator examined the owner."""
        began = self.net.now()
        if failures:
            self._suspect(owner, failures)
        examined = self.net.now() - began
        before = self.record.placement.version
        self.record = fetch_record(self.net, self.coordinator, *self.record.at)
        if self.record.placement.version == before:
            self.net.sleep(_WAIT)
        return examined

    def _suspect(self, owner: NodeId, failures: int) -> None:
        """Report a node; returns when it answers, or its slots are reassigned."""
        report = ReportUnreachable(owner, f"task {self.attempt}", failures)
        try:
            self.net.call(self.coordinator, report, REPORT_TIMEOUT)
        except UnreachableError as problem:
            if not problem.timed_out:  # else it is still waiting for the node to answer
                raise

    def _header(self, job: int, slots: range, rows: pa.Table, read: bool) -> Feed:
        record = self.record
        types = record.types.get(job, JobTypes())
        return Feed(
            incarnation=record.incarnation,
            job=job,
            epoch=record.epoch,
            try_=record.try_,
            attempt=self.attempt,
            ring=record.placement.version,
            slots=slots,
            committed=record.committed,
            time=record.time,
            rows=pc.sum(rows.column("rows")).as_py() or 0,
            output=types.output,
            read=read,
            clock=record.clocks.get(job),
        )


def _share(record: EpochRecord, slots: range) -> tuple[NodeId, range]:
    """The first unit of these slots: up to a cut of this try, or to another owner."""
    stop = slots.stop
    for cuts in (record.cuts, record.placement.cuts):
        later = bisect_right(cuts, slots.start)
        stop = min([stop, *cuts[later : later + 1]])
    return record.placement.owner(slots.start), range(slots.start, stop)


def _cut(rows: pa.Table, share: range, *, counted: bool) -> pa.Table:
    """The part of every block that lies in a slot range.

    One share has the number of values, and the blocks without rows.
    """
    columns: dict[str, list[object]] = {name: [] for name in BLOCK_SCHEMA.names}
    for row in rows.to_pylist():
        block = from_bytes(row["block"])
        if block.num_rows:
            parts = [part for _, part in slices(block, [share.start, share.stop])]
        else:
            parts = [block] if counted else []
        for part in parts:
            cut = {**row, "block": to_bytes(part), "rows": row["rows"] if counted else 0}
            for name, column in columns.items():
                column.append(cut[name])
    return pa.table(columns, schema=BLOCK_SCHEMA)


def end_of(rows: pa.Table) -> End:
    """The end marker of a feed of these rows."""
    places = zip(
        rows.column("stage").to_pylist(),
        rows.column("task").to_pylist(),
        rows.column("sequence").to_pylist(),
        (scalar.as_buffer() for scalar in rows.column("block")),
        strict=True,
    )
    ordered = sorted(
        (((stage, task, sequence), data) for stage, task, sequence, data in places),
        key=lambda block: block[0],
    )
    return End(len(ordered), digest_of(ordered))
