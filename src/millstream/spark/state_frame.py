"""The state in a checkpoint as a Spark DataFrame: every partition reads a range of slots.

Tasks read from the store themselves, so it must be reachable from the executors, as it is for the
nodes of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import find_store, open_checkpoint
from millstream.checkpoints.stored_state import BYTES_AT_ONCE, StoredState, manifest_of
from millstream.checkpoints.tables import StateTable, complete, json_field, union
from millstream.errors import MillstreamError
from millstream.spark.conform import conform, for_spark
from millstream.spark.session import acquire
from millstream.state.pickling import dumps, loads

_LEAST_BYTES = 2**20  # less is not worth a task
_FOUND = pa.schema([("schema", pa.binary()), ("error", pa.binary())])


@dataclass(frozen=True)
class _Reading:
    """What a task needs to read its part of a state."""

    url: str
    lineage: Lineage
    epoch: int
    job: str
    ranges: tuple[range, ...]

    def tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[StateTable, range]]:
        """The ranges of slots whose numbers a task was given."""
        with closing(open_checkpoint(self.url)) as store:
            state = StoredState(store, self.lineage, self.epoch, self.job)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield StateTable(state), self.ranges[number]


def read_state(
    path: str | os.PathLike[str],
    job: str,
    *,
    epoch: int | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The state of a job in a checkpoint, at an epoch (by default the newest).

    ``path`` is the ``checkpoint=`` of the run, or the URL of a store; ``store`` is the run's
    ``store=`` if it has a password. Columns are ``key`` and one for every entry of the state;
    their types come from a first pass over it; mixed types become text in JSON.
    """
    spark = spark or acquire(None)
    url = find_store(path, store)
    with closing(open_checkpoint(url)) as opened:
        lineage = Chain(opened).read(lambda damage: None)  # of other epochs, or raised below
        epoch = manifest_of(lineage, epoch).epoch
        lineage = lineage.upto(epoch)
        state = StoredState(opened, lineage, epoch, job)
        at_once = max(_LEAST_BYTES, state.size // spark.sparkContext.defaultParallelism)
        ranges = state.ranges(min(at_once, BYTES_AT_ONCE))
    reading = _Reading(url, lineage, epoch, job, tuple(ranges))
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    found = numbers.mapInArrow(partial(_find_schemas, reading), for_spark(_FOUND)[1]).collect()
    for row in found:
        if row["error"] is not None:
            raise loads(bytes(row["error"]))
    schemas = [pa.ipc.read_schema(pa.py_buffer(bytes(row["schema"]))) for row in found]
    schema = pa.schema(map(_known_to_spark, complete(union(schemas))))
    return numbers.mapInArrow(partial(_rows, reading, schema), for_spark(schema)[1])


def _known_to_spark(field: pa.Field) -> pa.Field:
    try:
        for_spark(pa.schema([field]))
    except PySparkException:
        return json_field(field.name)
    return field


def _find_schemas(reading: _Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema, error = pa.schema([]), None
    try:
        for table, slots in reading.tables(batches):
            schema = union([schema, table.schema_of(slots)])
    except MillstreamError as problem:  # as it is: Spark would make a text of it
        error = dumps(problem)
    yield pa.RecordBatch.from_arrays(
        [pa.array([schema.serialize().to_pybytes()]), pa.array([error], pa.binary())],
        schema=_FOUND,
    )


def _rows(
    reading: _Reading, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    target, _ = for_spark(schema)
    for table, slots in reading.tables(batches):
        for batch in table.rows(slots, schema):
            yield conform(batch, target, reading.job)
