"""The feeder: sends the blocks of a reduce task to the nodes that own its slots.

A rejected or broken feed is retried inside the task with the current placement, without using up
Spark's attempts. The task fails if state is lost, if the node reports an error, or after a minute
without success. A partition with several owners, because they were joined or slots were reassigned
meanwhile, is fed to a few of them at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.state.blocks import from_bytes, slices, to_bytes
from millstream.wire.blocks import BLOCK_SCHEMA, buffers_of, digest_of
from millstream.wire.calls import UnreachableError
from millstream.wire.epoch_record import EpochRecord, FetchRecord, JobTypes
from millstream.wire.feed import BrokenFeedError, End, Feed, FeedRefusedError
from millstream.wire.membership import Ping, ReportSlow, ReportUnreachable
from millstream.wire.net import Delivery, Net
from millstream.wire.timeouts import REPORT_TIMEOUT, ping_timeout

_GIVE_UP_AFTER = 60.0
_WAIT = 0.1
_SLOW_AFTER = 10.0
_AT_ONCE = 4


def fetch_record(
    net: Net, coordinator: str, epoch: int, try_: int, known: EpochRecord | None = None
) -> EpochRecord:
    """The record of an epoch, from the coordinator; ``known`` is another one of the run."""
    routing = None if known is None else known.routing
    answer = net.call(coordinator, FetchRecord(epoch, try_, routing))
    if isinstance(answer, EpochRecord):
        return answer
    assert known is not None
    return answer.of(known)


@dataclass
class Feeder:
    """Feeds the units of one attempt of one task."""

    net: Net
    coordinator: str
    record: EpochRecord
    attempt: int

    def feed(self, job: int, slots: range, rows: pa.Table, read: bool) -> Iterator[pa.RecordBatch]:
        """Feed the blocks of one shuffle partition; yields the outputs, in the order of slots."""
        yield from self._feed_shares(job, slots, _Blocks(rows, slots), read)

    def _feed_shares(
        self, job: int, slots: range, blocks: _Blocks, read: bool
    ) -> Iterator[pa.RecordBatch]:
        """Feed the owners of some slots, a few at a time."""
        shares = _shares(self.record, slots)
        for first in range(0, len(shares), _AT_ONCE):
            some = shares[first : first + _AT_ONCE]
            feeders = [replace(self) for _ in some]  # each with a record that it may replace
            outcomes = self.net.gather(
                [
                    partial(feeder._feed_share, job, share, rows, blocks, read)
                    for feeder, share, rows in zip(feeders, some, blocks.cut(some), strict=True)
                ]
            )
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                yield from outcome
            self.record = max((feeder.record for feeder in feeders), key=_version)

    def _feed_share(
        self, job: int, share: range, rows: pa.Table, blocks: _Blocks, read: bool
    ) -> list[pa.RecordBatch]:
        """Feed the slots of one owner; if they are reassigned to several meanwhile, those."""
        deadline, failures = self.net.now() + _GIVE_UP_AFTER, 0
        while len(_shares(self.record, share)) == 1:
            owner = self.record.placement.owner(share.start)
            try:
                return self._feed_owner(job, owner, share, rows, read)
            except (FeedRefusedError, UnreachableError, BrokenFeedError) as problem:
                stale = isinstance(problem, FeedRefusedError) and problem.stale
                if stale or self.net.now() > deadline:
                    raise
                cut_off = isinstance(problem, UnreachableError) and not self._reaches(
                    owner, failures
                )
                failures = failures + 1 if cut_off else 0
                deadline += self._refresh(owner, failures)
        return list(self._feed_shares(job, share, blocks, read))

    def _feed_owner(
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
                now = fetch_record(self.net, self.coordinator, *record.at, known=record)
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
        self.record = fetch_record(self.net, self.coordinator, *self.record.at, known=self.record)
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


def _version(record: EpochRecord) -> int:
    return record.placement.version


def _shares(record: EpochRecord, slots: range) -> list[range]:
    """The units of some slots: from cut to cut of this try, and of one owner each."""
    inner: set[int] = set()
    for cuts in (record.cuts, record.placement.cuts):
        inner.update(cuts[bisect_right(cuts, slots.start) : bisect_left(cuts, slots.stop)])
    return [
        range(start, stop) for start, stop in pairwise([slots.start, *sorted(inner), slots.stop])
    ]


class _Blocks:
    """The blocks of a task, decoded at most once, and only if they have to be cut.

    They are cut as they came from the map tasks, whatever was cut before: the same unit of another
    attempt must have the same bytes.
    """

    def __init__(self, rows: pa.Table, slots: range) -> None:
        self._rows = rows
        self._slots = slots

    @cached_property
    def _decoded(self) -> list[pa.RecordBatch]:
        chunks = self._rows.column("block").chunks
        return [from_bytes(data) for chunk in chunks for data in buffers_of(chunk)]

    def cut(self, shares: Sequence[range]) -> list[pa.Table]:
        """The part of the blocks for each of some adjacent shares.

        The first share of the task has the number of values, and the blocks without rows.
        """
        if list(shares) == [self._slots]:
            return [self._rows]
        counted = shares[0].start == self._slots.start
        parts: list[list[tuple[int, bytes]]] = [[] for _ in shares]
        bounds = [shares[0].start, *(share.stop for share in shares)]
        for at, block in enumerate(self._decoded):
            if block.num_rows:
                for share, rows in slices(block, bounds):
                    parts[share].append((at, to_bytes(rows)))
            elif counted:
                parts[0].append((at, to_bytes(block)))
        return [
            self._part(part, counted=counted and share == 0) for share, part in enumerate(parts)
        ]

    def _part(self, blocks: list[tuple[int, bytes]], *, counted: bool) -> pa.Table:
        """The rows of some blocks, with these contents instead of their own."""
        places = self._rows.drop_columns(["block"]).take(
            pa.array([at for at, _ in blocks], pa.int64())
        )
        columns = {name: places.column(name) for name in places.column_names}
        if not counted:
            columns["rows"] = pa.array([0] * len(blocks), pa.int64())
        columns["block"] = pa.array([data for _, data in blocks], pa.binary())
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
