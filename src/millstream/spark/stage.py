"""One stage of an epoch, as it runs in Spark's Python workers (``mapInArrow``).

Stage 0 maps the sources. Every later stage feeds the jobs of its level and continues at once with
the steps after them, so that feed(n) and map(n + 1) share one Python stage. What leaves a stage
are blocks for later stages and for sinks; with a single sink of known type, the last stage returns
the sink's rows themselves.

A task of a later stage learns its number from its rows. Spark's own is another one as soon as
anything after the stage coalesces partitions or unions frames. So that a task without blocks has a
row, too, the first task of a stage sends a *mark* to every task of the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from millstream.errors import MillstreamError
from millstream.spark.conform import SinkTypeError, conform
from millstream.state.blocks import from_bytes, to_bytes
from millstream.state.collector import freeze_loaded, without_collector
from millstream.state.pickling import loads
from millstream.state.records import decode_records, plain_columns
from millstream.state.values import ValueTypeError, value_text
from millstream.wire.blocks import BLOCK_SCHEMA, MARK
from millstream.wire.calls import Endpoint, call
from millstream.wire.epoch_record import EpochRecord, ReportFailure
from millstream.wire.flight_net import FlightNet
from millstream.work.chunk import Chunk
from millstream.work.feeder import Feeder, fetch_record
from millstream.work.map_side import MapSide
from millstream.work.program import Packed, Program, unpack
from millstream.work.scans.scan import ScanTask

SOURCE_TAG = "millstream_source"


@dataclass(frozen=True)
class Reader:
    """A sink, or a step in the JVM, whose columns are known."""

    at: int
    name: str
    schema: pa.Schema


@dataclass(frozen=True)
class StageTask:
    """What a worker needs to run one stage of one try of one epoch.

    With ``branches`` it maps rows of the vertices named there; with ``scans``, of which each is a
    pickled ``ScanTask`` and its counter, it reads these rows itself; without either, it feeds
    blocks.
    ``lane`` distinguishes the blocks of parallel parts of one stage.
    """

    coordinator: Endpoint
    program: Packed
    stage: int
    epoch: int
    try_: int
    branches: tuple[int, ...] = ()
    scans: tuple[bytes, ...] = ()
    direct: Reader | None = None
    lane: int = 0


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a stage over one Spark partition; errors also go to the coordinator, typed."""
    with _reporting(task):
        record = _record(task.coordinator, task.epoch, task.try_)
        stage = _Stage(task, unpack(task.program), record)
        if task.scans:
            yield from stage.map_files(batches)
        elif task.branches:
            yield from stage.map_sources(batches)
        else:
            yield from stage.feed(batches)
    freeze_loaded()


@contextmanager
def _reporting(task: StageTask) -> Iterator[None]:
    """Send errors to the coordinator as they are; Spark would pass on only their text."""
    try:
        yield
    except MillstreamError as problem:
        call(task.coordinator, ReportFailure(task.epoch, task.try_, problem))
        raise RuntimeError(f"{type(problem).__name__}: {str(problem)[:300]}") from None


def _record(coordinator: Endpoint, epoch: int, try_: int) -> EpochRecord:
    """The record of a try, fetched once by each worker."""
    newest = _newest(coordinator)
    if newest.record is None or newest.record.at != (epoch, try_):
        net = FlightNet.to(coordinator)
        newest.record = fetch_record(net, coordinator.address, epoch, try_, known=newest.record)
    return newest.record


@dataclass
class _Newest:
    """The newest record that this worker has of a run."""

    record: EpochRecord | None = None


@lru_cache(maxsize=4)  # Spark's workers outlive runs
def _newest(coordinator: Endpoint) -> _Newest:
    return _Newest()


class _Stage:
    """One attempt of one task: feeds jobs, and returns the rows of the map side to Spark."""

    def __init__(self, task: StageTask, program: Program, record: EpochRecord) -> None:
        context = TaskContext.get()
        assert context is not None
        self._task = task
        self._program = program
        self._record = record
        self._tasks = record.task_count  # of each job
        self._number = context.partitionId()  # until a mark or a block has the real one
        self._attempt = context.taskAttemptId()
        self._map_side = MapSide(
            program,
            self,
            time=record.time,
            clocks=record.clocks,
            key_types={job: types.key for job, types in record.types.items()},
            partitions=record.partitions,
        )
        self._sequence = 0
        self._ready: list[pa.RecordBatch] = []

    def map_sources(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the steps after the sources."""
        yield from self._map(rows for batch in batches for rows in self._by_branch(batch))

    def map_files(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Scan the files of the tasks with these numbers, and run the steps after the sources."""
        yield from self._map(rows for batch in numbers for rows in self._scanned(batch))

    def _map(self, found: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for at, rows in found:
            with without_collector():
                self._map_side.read(at, Chunk(batch=rows))
            yield from self._drain()
        yield from self._finish()

    def _scanned(self, numbers: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number in numbers.column(0).to_pylist():
            scan: ScanTask
            counter: Accumulator[int]
            scan, counter = loads(self._task.scans[number])
            for rows in scan.read():
                counter.add(rows.num_rows)
                yield scan.source, rows

    def _by_branch(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        branches = self._task.branches
        if len(branches) == 1:
            yield branches[0], batch
            return
        tags = batch.column(SOURCE_TAG)
        for tag, at in enumerate(branches):
            if at < 0:
                continue  # a heartbeat: it makes an epoch, nothing more
            rows = batch.filter(pc.equal(tags, tag))
            if rows.num_rows:
                column = rows.column(f"branch{tag}")
                fields = [column.type.field(i) for i in range(column.type.num_fields)]
                yield at, pa.RecordBatch.from_arrays(column.flatten(), schema=pa.schema(fields))

    def feed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Feed the job of this task, and run the steps after it."""
        job = number = -1
        mine: list[pa.RecordBatch] = []
        for batch in batches:
            if job < 0 and batch.num_rows:
                self._number = batch.column("route")[0].as_py()
                job, number = self._program.job_at(self._task.stage, self._number, self._tasks)
            own, others = _sorted_out(batch, job)
            mine += own
            if others is not None:
                self._pass_on(others)
        if job < 0:
            return  # no mark arrived: receipts show what is missing
        rows = pa.Table.from_batches(mine, schema=BLOCK_SCHEMA)
        read = self._program.is_read(job)
        coordinator = self._task.coordinator
        net = FlightNet.to(coordinator)
        feeder = Feeder(net, coordinator.address, self._record, self._attempt)
        for slots, blocks in self._by_slots(rows, number):
            for output in feeder.feed(job, slots, blocks, read):
                with without_collector():
                    self._map_side.results(job, output)
                yield from self._drain()
        yield from self._finish()

    def _by_slots(self, rows: pa.Table, task: int) -> list[tuple[range, pa.Table]]:
        """The slots of each partition of a task, with its blocks."""
        parts = self._record.partitions_of(task)
        if len(parts) == 1:
            return [(self._record.slots_of(parts[0]), rows)]
        column = rows.column("part")
        return [
            (self._record.slots_of(part), rows.filter(pc.equal(column, part))) for part in parts
        ]

    def _pass_on(self, batch: pa.RecordBatch) -> None:
        """Send blocks for later stages on their way, with a route for the next shuffle."""
        direct = self._task.direct
        targets = batch.column("target").to_pylist()
        if direct is not None:
            for block in batch.column("block"):
                self.to_sink(direct.at, Chunk(batch=from_bytes(block.as_buffer())))
            return
        parts = batch.column("part").to_pylist()
        routes = [self._route(target, part) for target, part in zip(targets, parts, strict=True)]
        at = BLOCK_SCHEMA.get_field_index("route")
        self._ready.append(
            batch.set_column(at, BLOCK_SCHEMA.field(at), pa.array(routes, pa.int32()))
        )

    def _route(self, target: int, part: int) -> int:
        following = self._task.stage + 1
        if following > self._program.last_stage:
            return 0
        if target in self._program.stages[following]:
            return self._program.route_of(target, self._record.tasks[part], self._tasks)
        return self._number % self._program.width(following, self._tasks)

    # -- the output of the map side --------------------------------------------------------

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        direct = self._task.direct
        if direct is None:
            self._emit([(sink, 0, to_bytes(chunk.batch()))], len(chunk))
        else:
            rows = _plain_rows(chunk.batch(), direct.name)
            self._ready.append(conform(rows, direct.schema, direct.name))

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        self._emit([(frame, 0, to_bytes(chunk.batch()))], len(chunk))

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        self._emit([(job, part, to_bytes(rows)) for part, rows in shares], count)

    def _emit(self, blocks: list[tuple[int, int, bytes]], count: int) -> None:
        columns: list[list[object]] = [[] for _ in BLOCK_SCHEMA]
        for target, part, data in blocks:
            route = self._route(target, part)
            origin = (self._task.stage + self._task.lane, self._number, self._sequence)
            row = (route, target, part, *origin, count, data)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
            self._sequence += 1
            count = 0  # reported once, with the first block
        self._ready.append(
            pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, BLOCK_SCHEMA, strict=True)],
                schema=BLOCK_SCHEMA,
            )
        )

    def _drain(self) -> Iterator[pa.RecordBatch]:
        ready, self._ready = self._ready, []
        yield from ready

    def _finish(self) -> Iterator[pa.RecordBatch]:
        with without_collector():
            self._map_side.finish()
        if self._number == 0 and not self._task.lane:
            self._mark()
        yield from self._drain()

    def _mark(self) -> None:
        """Send a row to every task of the next stage."""
        following = self._task.stage + 1
        if following <= self._program.last_stage:
            width = self._program.width(following, self._tasks)
            marks = {name: np.zeros(width, np.int32) for name in BLOCK_SCHEMA.names[:-2]}
            marks |= {"route": np.arange(width, dtype=np.int32), "target": marks["target"] + MARK}
            self._ready.append(
                pa.RecordBatch.from_arrays(
                    [*marks.values(), pa.array([0] * width), pa.array([b""] * width)],
                    schema=BLOCK_SCHEMA,
                )
            )


def _sorted_out(
    batch: pa.RecordBatch, job: int
) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
    """The blocks of a job, those for others, and no marks; blocks are copied only if mixed."""
    targets = batch.column("target").to_numpy()
    others = (targets != job) & (targets != MARK)
    if others.any():
        return [batch.filter(pa.array(targets == job))], batch.filter(pa.array(others))
    edges = [-1, *np.flatnonzero(targets == MARK).tolist(), batch.num_rows]
    between = [(before + 1, mark) for before, mark in itertools.pairwise(edges)]
    return [batch.slice(start, stop - start) for start, stop in between if stop > start], None


def decode_rows(
    task: StageTask, target: Reader, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Turn the blocks of one target, a sink or a step in the JVM, into rows."""
    with _reporting(task):
        for batch in batches:
            own = batch.filter(pc.equal(batch.column("target"), target.at))
            for block in own.column("block"):
                rows = _plain_rows(from_bytes(block.as_buffer()), target.name)
                yield conform(rows, target.schema, target.name)


def _plain_rows(batch: pa.RecordBatch, reader: str) -> pa.RecordBatch:
    try:
        return plain_columns(batch)
    except ValueTypeError as misfit:
        record = value_text(decode_records(batch)[misfit.row])
        raise SinkTypeError(reader, f"{misfit.column} {misfit.expected}", record) from None


def find_schemas(
    task: StageTask, targets: Mapping[int, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield, for each of the targets, the distinct schemas of its blocks in this partition."""
    found: dict[int, set[bytes]] = {}
    with _reporting(task):
        for batch in batches:
            rows = zip(batch.column("target").to_pylist(), batch.column("block"), strict=True)
            for target, block in rows:
                if target in targets:
                    plain = _plain_rows(from_bytes(block.as_buffer()), targets[target])
                    schema = bytes(plain.schema.remove_metadata().serialize())
                    found.setdefault(target, set()).add(schema)
    listed = [(target, schema) for target, schemas in found.items() for schema in sorted(schemas)]
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([target for target, _ in listed], pa.int32()),
            pa.array([schema for _, schema in listed], pa.binary()),
        ],
        names=["target", "schema"],
    )
