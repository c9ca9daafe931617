"""From a plan to Spark: the streaming DataFrame that is admitted, and the frames of an epoch.

The sources and the SQL or DataFrame steps right behind them become one streaming DataFrame; an
epoch is then a chain of ``mapInArrow`` stages with one shuffle before every level of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from millstream.coordinator.record import EpochRecord
from millstream.errors import WorkflowError
from millstream.flow.functions import SqlStep
from millstream.flow.plan import Plan
from millstream.flow.workflow import FrameVertex, SourceVertex
from millstream.spark.conform import for_spark, unified
from millstream.spark.sources import open_source
from millstream.spark.stage import (
    SOURCE_TAG,
    Direct,
    StageTask,
    decode_sink,
    find_schemas,
    run_stage,
)
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint
from millstream.work.failures import calling
from millstream.work.program import Packed, Program

HEARTBEAT = -1
_SPARK_TYPES = {pa.int32(): IntegerType(), pa.int64(): LongType(), pa.binary(): BinaryType()}
_BLOCKS = StructType(
    [
        StructField(f.name, _SPARK_TYPES[f.type])
        for f in BLOCK_SCHEMA
    ]
)
_SCHEMAS = StructType([StructField("sink", IntegerType()), StructField("schema", BinaryType())])


@dataclass(frozen=True)
class Admission:
    """The streaming DataFrame of a run, and which vertex each of its branches feeds."""

    frame: DataFrame
    branches: tuple[int, ...]


def admission(spark: SparkSession, plan: Plan, heartbeat: bool) -> Admission:
    """Open the sources, apply the steps that stay in the JVM, and bring all into one frame."""
    frames: dict[int, DataFrame] = {}
    for at, vertex in enumerate(plan.vertices):
        if not plan.in_source_frame[at]:
            continue
        if isinstance(vertex, SourceVertex):
            frames[at] = open_source(spark, vertex.source)
        elif isinstance(vertex, FrameVertex):
            frames[at] = apply_step(vertex, frames[plan.inputs[at][0]])
    branches = [
        at for at in frames if any(not plan.in_source_frame[c] for c in plan.consumers[at])
    ]
    if not heartbeat and len(branches) == 1:
        return Admission(frames[branches[0]], (branches[0],))
    parts = [frames[at] for at in branches]
    if heartbeat:
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        branches, parts = [*branches, HEARTBEAT], [*parts, ticks]
    return Admission(_tagged_union(parts), tuple(branches))


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
        self._task = StageTask(coordinator, packed, 0, 0, 0, branches)
        self._names = {at: sink.name for at, sink in plan.sinks}
        self._schemas: dict[int, tuple[pa.Schema, StructType]] = {
            at: for_spark(schema) for at, schema in _declared(plan).items()
        }

    @contextmanager
    def build(self, frame: DataFrame, record: EpochRecord) -> Iterator[Frames]:
        """The frames of this try; what they cache is dropped afterwards."""
        task = replace(self._task, epoch=record.epoch, try_=record.try_)
        if len(self._names) == 1:
            (sink,) = self._names
            if sink in self._schemas:
                schema, struct = self._schemas[sink]
                direct = Direct(sink, self._names[sink], schema)
                chain = self._chain(frame, replace(task, direct=direct), struct)
                yield Frames(chain, {sink: chain})
                return
        blocks = self._chain(frame, task, _BLOCKS)
        if not self._names:
            yield Frames(blocks, {})
            return
        blocks = blocks.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if not self._names.keys() <= self._schemas.keys():
                self._discover(blocks)
            yield Frames(
                blocks,
                {at: self._sink_frame(blocks, at) for at in self._names if at in self._schemas},
            )
        finally:
            blocks.unpersist()

    def _chain(self, frame: DataFrame, task: StageTask, result: StructType) -> DataFrame:
        last = self._program.last_stage
        for stage in range(last + 1):
            if stage:
                frame = frame.repartitionById(self._program.width(stage), sf.col("route"))
            of_stage = replace(task, stage=stage, direct=task.direct if stage == last else None)
            frame = frame.mapInArrow(
                partial(run_stage, of_stage), result if stage == last else _BLOCKS
            )
        return frame

    def _discover(self, blocks: DataFrame) -> None:
        found: dict[int, list[pa.Schema]] = {}
        for row in blocks.mapInArrow(find_schemas, _SCHEMAS).collect():
            schema = pa.ipc.read_schema(pa.py_buffer(bytes(row["schema"])))
            found.setdefault(row["sink"], []).append(schema)
        for at, schemas in found.items():
            if at in self._names and at not in self._schemas:
                schema = unified(self._names[at], schemas)
                if not any(pa.types.is_null(field.type) for field in schema):
                    self._schemas[at] = for_spark(schema)

    def _sink_frame(self, blocks: DataFrame, at: int) -> DataFrame:
        schema, struct = self._schemas[at]
        return blocks.mapInArrow(partial(decode_sink, at, self._names[at], schema), struct)


@dataclass(frozen=True)
class Frames:
    """The frames of one try: all of it, and what each sink reads."""

    body: DataFrame
    sinks: Mapping[int, DataFrame]

    def evaluate(self) -> None:
        """Run every partition of the body, whatever the sinks looked at."""
        self.body.write.format("noop").mode("overwrite").save()


def _declared(plan: Plan) -> dict[int, pa.Schema]:
    found: dict[int, pa.Schema] = {}
    for at, _ in plan.sinks:
        before = plan.vertices[plan.inputs[at][0]]
        schema = getattr(before, "output", None) or getattr(before, "schema", None)
        if isinstance(schema, pa.Schema):
            found[at] = schema
    return found
