"""From a plan to Spark: the streaming DataFrame that is admitted, and the frames of an epoch.

The sources and the SQL or DataFrame steps right after them become one streaming DataFrame; an
epoch is then a chain of ``mapInArrow`` stages with one shuffle before every level of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from millstream.errors import WorkflowError
from millstream.flow.functions import SqlStep
from millstream.flow.plan import Plan
from millstream.flow.vertices import (
    BatchStep,
    FrameVertex,
    FusedVertex,
    JobVertex,
    RecordStep,
    SourceVertex,
)
from millstream.spark.arrow_maps import ArrowMaps
from millstream.spark.conform import SinkTypeError, for_spark, is_known, unified
from millstream.spark.file_scans import FileScan
from millstream.spark.source_frames import open_source
from millstream.spark.stage import (
    SOURCE_TAG,
    Reader,
    StageTask,
    decode_rows,
    find_schemas,
    run_stage,
)
from millstream.spark.stage_chain import Chain, EpochRows, StageChains, evaluate_frame
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint
from millstream.wire.epoch_record import EpochRecord
from millstream.work.failures import calling
from millstream.work.program import Packed, Program

HEARTBEAT = -1
_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPySpark",
}
_LANE = 1000
_SPARK_TYPES = {pa.int32(): IntegerType(), pa.int64(): LongType(), pa.binary(): BinaryType()}
BLOCKS = StructType([StructField(f.name, _SPARK_TYPES[f.type]) for f in BLOCK_SCHEMA])
_SCAN_COLUMNS = ("id",)
_MOST_NUMBERS = 64
_SCHEMAS = StructType([StructField("target", IntegerType()), StructField("schema", BinaryType())])


@dataclass(frozen=True)
class Admission:
    """The streaming DataFrame of a run, and which vertex each of its branches feeds.

    ``schemas`` has the columns of the branches that are sources.
    """

    frame: DataFrame
    branches: tuple[int, ...]
    schemas: Mapping[int, StructType]


def admission(spark: SparkSession, plan: Plan, heartbeat: bool) -> Admission:
    """Open the sources, apply the steps that stay in the JVM, and union all into one frame."""
    frames: dict[int, DataFrame] = {}
    for at, vertex in enumerate(plan.vertices):
        if not plan.in_source_frame[at]:
            continue
        if isinstance(vertex, SourceVertex):
            frames[at] = open_source(spark, vertex.source)
        elif isinstance(vertex, FrameVertex):
            frames[at] = apply_step(vertex, frames[plan.inputs[at][0]])
            _check_stateless(vertex, frames[at])
    branches = [at for at in frames if any(not plan.in_source_frame[c] for c in plan.consumers[at])]
    schemas = {at: frames[at].schema for at in branches if not plan.inputs[at]}
    if not heartbeat and len(branches) == 1:
        return Admission(frames[branches[0]], (branches[0],), schemas)
    parts = [frames[at] for at in branches]
    if heartbeat:
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        branches, parts = [*branches, HEARTBEAT], [*parts, ticks]
    return Admission(_tagged_union(parts), tuple(branches), schemas)


def _tagged_union(parts: list[DataFrame]) -> DataFrame:
    """One frame with a tag and one struct column per branch, of which one is filled."""
    tagged = []
    for tag, part in enumerate(parts):
        columns = [
            sf.struct(*[sf.col(f"`{name}`") for name in part.columns]).alias(f"branch{other}")
            if other == tag
            else sf.lit(None).cast(parts[other].schema).alias(f"branch{other}")
            for other in range(len(parts))
        ]
        tagged.append(part.select(sf.lit(tag).alias(SOURCE_TAG), *columns))
    return reduce(DataFrame.union, tagged)


def apply_step(vertex: FrameVertex, frame: DataFrame) -> DataFrame:
    """Apply a SQL or DataFrame step."""
    step = vertex.step
    if isinstance(step, SqlStep):
        result = frame if step.where is None else frame.where(step.where)
        return result.selectExpr(*step.expressions) if step.expressions else result
    with calling("dataframe step", step.function):
        result = step.function(frame)
    if not isinstance(result, DataFrame):
        raise WorkflowError(
            f"the function of ms.dataframe returned {type(result).__name__}",
            "return a Spark DataFrame",
            vertex.place,
        )
    return result


def _check_stateless(vertex: FrameVertex, frame: DataFrame) -> None:
    """Reject steps with state of Spark's own, which our checkpoints would not include."""
    pending = [frame._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        if node.nodeName() in _STATEFUL:
            raise WorkflowError(
                f"a step in the JVM uses {node.nodeName()}, which has state of Spark's own",
                "aggregate (groupBy, dropDuplicates, ...) with a job",
                vertex.place,
            )
        children = node.children()
        pending.extend(children.apply(at) for at in range(children.size()))


class EpochFrames:
    """Builds the frames of one try of an epoch."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        packed: Packed,
        coordinator: Endpoint,
        branches: tuple[int, ...],
    ) -> None:
        self._plan = plan
        self._program = program
        self._branches = branches
        self._maps = ArrowMaps()
        self._chains = StageChains(self._maps)
        self._numbers: dict[int, DataFrame] = {}
        self._route = sf.col("route")
        self._names: tuple[str, ...] | None = None
        self._task = StageTask(coordinator, packed, 0, 0, 0)
        self._sinks = {at: sink.name for at, sink in plan.sinks}
        self._steps = {
            at: str(vertex.place)
            for at, vertex in plan.of_kind(FrameVertex)
            if not plan.in_source_frame[at]
        }
        self._schemas: dict[int, tuple[pa.Schema, StructType]] = {
            at: for_spark(schema) for at, schema in _declared(plan, self._sinks | self._steps)
        }

    @contextmanager
    def build(
        self, frame: DataFrame, record: EpochRecord, scan: FileScan | None = None
    ) -> Iterator[Frames]:
        """The frames of this try, over ``frame``, or over the files of a scan.

        What they cache is dropped afterwards.
        """
        task = replace(self._task, epoch=record.epoch, try_=record.try_)
        if scan is not None:
            task = replace(task, scans=scan.begin())
            frame = self._numbers_of(len(scan.tasks), frame.sparkSession)
        with ExitStack() as cached:
            if len(self._sinks) == 1 and not self._steps:
                (sink,) = self._sinks
                if sink in self._schemas:
                    schema, struct = self._schemas[sink]
                    direct = Reader(sink, self._sinks[sink], schema)
                    rows = self._chain(frame, record, replace(task, direct=direct), struct)
                    yield Frames(rows.evaluate, {sink: rows.frame})
                    return
            if not self._steps:
                rows = self._chain(frame, record, task, BLOCKS)
                if not self._sinks:
                    yield Frames(rows.evaluate, {})
                    return
                blocks = rows.frame
            else:
                blocks = self._chain_with_steps(frame, record, task, cached)
            blocks = _persist(blocks, cached)
            self._discover(blocks, task, self._sinks)
            yield Frames(
                partial(evaluate_frame, blocks),
                {at: self._rows(blocks, task, at) for at in self._sinks if at in self._schemas},
            )

    def _chain(
        self, frame: DataFrame, record: EpochRecord, task: StageTask, result: StructType
    ) -> EpochRows:
        """What the last stage returns, if there are no steps in the JVM."""
        last = self._program.last_stage
        frame = self._with_a_task(frame, task)
        stages = range(last + 1)
        chain = Chain(
            self._source_names(frame, task),
            tuple(partial(run_stage, self._of_stage(task, stage)) for stage in stages),
            tuple(result if stage == last else BLOCKS for stage in stages),
            tuple(self._program.width(stage, record.task_count) for stage in stages[1:]),
        )
        return self._chains.rows(frame, chain)

    def _chain_with_steps(
        self, frame: DataFrame, record: EpochRecord, task: StageTask, cached: ExitStack
    ) -> DataFrame:
        """The blocks of the last stage, with steps in the JVM between stages."""
        frame = self._with_a_task(frame, task)
        names = self._source_names(frame, task)
        for stage in range(self._program.last_stage + 1):
            if stage:
                width = self._program.width(stage, record.task_count)
                frame = frame.repartitionById(width, self._route)
            of_stage = self._of_stage(task, stage)
            frame = self._maps.apply(frame, names, partial(run_stage, of_stage), BLOCKS)
            names = tuple(BLOCKS.names)
            entries = [
                at
                for at in self._steps
                if self._plan.levels[at] == stage and self._plan.inputs[at][0] not in self._steps
            ]
            for at in entries:  # in the plan's order: one may feed the next
                frame = self._through_jvm(frame, of_stage, at, cached)
        return frame

    def _with_a_task(self, frame: DataFrame, task: StageTask) -> DataFrame:
        """The frame of an epoch; a task must run, also over empty files only, to send marks."""
        needed = self._program.last_stage and not task.scans
        return frame.repartition(1) if needed and not _tasks_of(frame) else frame

    def _numbers_of(self, count: int, session: SparkSession) -> DataFrame:
        """A row per task, with its number: planned once, as most epochs have as many tasks."""
        if count not in self._numbers:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            self._numbers[count] = session.range(0, count, 1, count)
        return self._numbers[count]

    def _of_stage(self, task: StageTask, stage: int) -> StageTask:
        return replace(
            task,
            stage=stage,
            branches=() if stage else self._branches,
            scans=() if stage else task.scans,
            direct=task.direct if stage == self._program.last_stage else None,
        )

    def _source_names(self, frame: DataFrame, task: StageTask) -> tuple[str, ...]:
        """The columns of a scan, or of the frames that Spark hands over: those of its query."""
        if task.scans:
            return _SCAN_COLUMNS
        if self._names is None:
            self._names = tuple(frame.columns)
        return self._names

    def _through_jvm(
        self, blocks: DataFrame, task: StageTask, entry: int, cached: ExitStack
    ) -> DataFrame:
        """Take the blocks of a JVM step out, run it, and put its results back in."""
        blocks = _persist(blocks, cached)
        # At once: a map task takes its number from Spark, which is another one below the union.
        evaluate_frame(blocks)
        self._discover(blocks, task, {entry: self._steps[entry]})
        parts = [blocks.where(sf.col("target") != entry)]

        def walk(at: int, frame: DataFrame) -> None:
            vertex = self._plan.vertices[at]
            assert isinstance(vertex, FrameVertex)
            result = apply_step(vertex, frame)
            readers = self._plan.consumers[at]
            if any(reader not in self._steps for reader in readers):
                part = replace(task, branches=(at,), scans=(), lane=_LANE * (at + 1))
                parts.append(result.mapInArrow(partial(run_stage, part), BLOCKS))
            for reader in readers:
                if reader in self._steps:
                    walk(reader, result)

        if entry in self._schemas:  # else there were no rows yet
            walk(entry, self._rows(blocks, task, entry))
        return reduce(DataFrame.union, parts)

    def _discover(self, blocks: DataFrame, task: StageTask, targets: Mapping[int, str]) -> None:
        """Learn the columns of targets from the first data that reach them."""
        unknown = {at: name for at, name in targets.items() if at not in self._schemas}
        if not unknown:
            return
        found: dict[int, list[pa.Schema]] = {}
        for row in blocks.mapInArrow(partial(find_schemas, task, unknown), _SCHEMAS).collect():
            schema = pa.ipc.read_schema(pa.py_buffer(bytes(row["schema"])))
            found.setdefault(row["target"], []).append(schema)
        for at, schemas in found.items():
            schema = unified(targets[at], schemas)
            empty = [field.name for field in schema if not is_known(field.type)]
            if empty:
                raise SinkTypeError(targets[at], f"{empty[0]} (type unknown)", "None in every row")
            self._schemas[at] = for_spark(schema)

    def _rows(self, blocks: DataFrame, task: StageTask, at: int) -> DataFrame:
        schema, struct = self._schemas[at]
        reader = Reader(at, (self._sinks | self._steps)[at], schema)
        return blocks.mapInArrow(partial(decode_rows, task, reader), struct)


def _tasks_of(frame: DataFrame) -> int:
    """How many tasks read a frame."""
    execution = frame._jdf.queryExecution()
    plan = execution.analyzed()
    # The frame of foreachBatch is an RDD, whose partitions are known without planning.
    rdd = plan.rdd() if plan.nodeName() == "LogicalRDD" else execution.toRdd()
    return int(rdd.getNumPartitions())


def _persist(frame: DataFrame, cached: ExitStack) -> DataFrame:
    cached_frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    cached.callback(cached_frame.unpersist)
    return cached_frame


@dataclass(frozen=True)
class Frames:
    """The frames of one try: what runs every task, whichever the sinks ran, and what they read."""

    evaluate: Callable[[], None]
    sinks: Mapping[int, DataFrame]


def _declared(plan: Plan, targets: Iterable[int]) -> Iterator[tuple[int, pa.Schema]]:
    """The schemas that annotations and ``output=`` declare for sinks and JVM steps."""
    for at in targets:
        before = plan.vertices[plan.inputs[at][0]]
        if isinstance(before, FusedVertex):
            before = before.job
        if isinstance(before, JobVertex) and before.output is not None:
            yield at, before.output
        elif isinstance(before, RecordStep | BatchStep) and before.schema is not None:
            yield at, before.schema
