"""Feeding: how a reduce task hands its blocks to the nodes that own its slots.

A refused or broken feed is tried again inside the task against the ring in force; it does not
burn Spark's attempts. What ends the task is a node that the coordinator confirms as lost, an error
of the node itself, or a minute without success.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from millstream.coordinator.record import EpochRecord, JobTypes
from millstream.errors import MillstreamError
from millstream.node.messages import BrokenFeed, End, Feed, FeedRefused
from millstream.ring.ring import NodeId
from millstream.state.blocks import from_bytes, slices, to_bytes
from millstream.wire.blocks import BLOCK_SCHEMA, digest_of
from millstream.wire.calls import Endpoint, Unreachable, call, client_of, translated

_GIVE_UP_AFTER = 60.0
_WAIT = 0.1


def fetch_record(coordinator: Endpoint, epoch: int, try_: int) -> EpochRecord:
    """The record of an epoch, from the coordinator."""
    record: EpochRecord = call(coordinator, "record", (epoch, try_))
    return record


def feed_unit(
    coordinator: Endpoint,
    record: EpochRecord,
    attempt: int,
    job: int,
    slots: range,
    rows: pa.Table,
    read: bool,
) -> Iterator[pa.RecordBatch]:
    """Feed the blocks of one shuffle partition; give the outputs, in the order of slots."""
    for node, share in _shares(record, slots):
        part = rows if share == slots else _cut(rows, share, counted=share.start == slots.start)
        header = _header(record, attempt, job, share, part, read)
        yield from _feed_until_taken(coordinator, record, node, header, part)


def _shares(record: EpochRecord, slots: range) -> Iterator[tuple[NodeId, range]]:
    """Cut a slot range where its owner changes."""
    owners = record.ring.table[slots.start : slots.stop]
    cuts = (np.flatnonzero(np.diff(owners)) + slots.start + 1).tolist()
    for start, stop in pairwise([slots.start, *cuts, slots.stop]):
        yield record.ring.owner(start), range(start, stop)


def _cut(rows: pa.Table, share: range, *, counted: bool) -> pa.Table:
    """The part of every block that lies in a slot range; one share tells how many values."""
    columns: dict[str, list[object]] = {name: [] for name in BLOCK_SCHEMA.names}
    for row in rows.to_pylist():
        for _, part in slices(from_bytes(row["block"]), [share.start, share.stop]):
            cut = {**row, "block": to_bytes(part), "rows": row["rows"] if counted else 0}
            for name, column in columns.items():
                column.append(cut[name])
    return pa.table(columns, schema=BLOCK_SCHEMA)


def _feed_until_taken(
    coordinator: Endpoint, record: EpochRecord, node: NodeId, header: Feed, rows: pa.Table
) -> list[pa.RecordBatch]:
    deadline = time.monotonic() + _GIVE_UP_AFTER
    end = _end_of(rows)
    while True:
        endpoint = Endpoint(record.addresses[node], coordinator.secret)
        try:
            return _feed(endpoint, header, rows, end)
        except FeedRefused as refusal:
            if refusal.stale or time.monotonic() > deadline:
                raise
            record = fetch_record(coordinator, record.epoch, record.try_)
            node = record.ring.owner(header.slots.start)
            header = replace(header, ring=record.ring.version)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            call(coordinator, "suspect", node)  # raises NodeLost when the node is gone
        except BrokenFeed:
            if time.monotonic() > deadline:
                raise
        time.sleep(_WAIT)


def _header(
    record: EpochRecord, attempt: int, job: int, slots: range, rows: pa.Table, read: bool
) -> Feed:
    types = record.types.get(job, JobTypes())
    return Feed(
        incarnation=record.incarnation,
        job=job,
        epoch=record.epoch,
        try_=record.try_,
        attempt=attempt,
        ring=record.ring.version,
        slots=slots,
        committed=record.committed,
        time=record.time,
        rows=pc.sum(rows.column("rows")).as_py() or 0,
        output=types.output,
        read=read,
    )


def _end_of(rows: pa.Table) -> End:
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


def _feed(endpoint: Endpoint, header: Feed, rows: pa.Table, end: End) -> list[pa.RecordBatch]:
    try:
        client = client_of(endpoint)
        descriptor = flight.FlightDescriptor.for_command(pickle.dumps(header, 5))
        writer, reader = client.do_exchange(descriptor)
        with writer:
            try:
                writer.begin(BLOCK_SCHEMA)
                for batch in rows.to_batches():
                    writer.write_batch(batch)
                writer.write_metadata(pickle.dumps(end, 5))
                writer.done_writing()
            except pa.ArrowException:
                reader.read_all()  # the node hung up: its own words say why
                raise
            return [chunk.data for chunk in reader if chunk.data.num_rows]
    except MillstreamError:
        raise
    except (flight.FlightError, pa.ArrowException) as problem:
        raise translated(endpoint, problem) from None
