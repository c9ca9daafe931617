"""The replay source: a recording as a Spark stream whose offset is a row number.

Rows come from the spool, the copy that ``millstream.spark.spool`` makes of a recording. Which
rows lie between two offsets depends on the offsets alone: an epoch that runs again, here or after
a restart on the same recording, gets the same rows. The clock decides only how far the newest
offset is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.flow.sources import ReplaySource
from millstream.spark.spool import SPOOL_ROWS, microseconds, spool_of

TASK_ROWS = 1024  # below this, one more task costs more than it saves

Offset = dict[str, int]


@dataclass(frozen=True)
class ReplayEnd:
    """Where a replay ends."""

    rows: int

    def reached(self, offset: str | Mapping[str, int] | None) -> bool:
        """Whether a source's ``endOffset`` in a query's progress is the last one."""
        if isinstance(offset, str):
            offset = json.loads(offset)
        return (offset["row"] if isinstance(offset, Mapping) else 0) >= self.rows


def replay_end(source: ReplaySource) -> ReplayEnd:
    """The end of a replay, to stop a paced one, which Spark would run for ever."""
    return ReplayEnd(spool_of(source).rows)


def open_replay(
    spark: SparkSession, source: ReplaySource, *, ship: bool | None = None
) -> DataFrame:
    """Open a replay as a streaming DataFrame.

    ``ship`` sends the spool to the executors through Spark; by default, unless they are threads
    of the driver.
    """
    spool = spool_of(source)
    context = spark.sparkContext
    if ship is None:
        ship = str(context.master).partition("[")[0] != "local"
    if ship:
        context.addFile(spool.path)
    options = {
        "spool": os.path.basename(spool.path) if ship else spool.path,
        "rows": spool.rows,
        "schema": spool.schema.json(),
        "tasks": context.defaultParallelism,
        "limit": source.rows_per_epoch,
        "rate": source.rate,
        "speedup": source.speedup,
        "time": source.time_column,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    spark.dataSource.register(ReplayDataSource)
    return spark.readStream.format(ReplayDataSource.name()).options(**given).load()


class ReplayDataSource(DataSource):
    """What Spark builds, from text options, in the driver and in the executors."""

    @classmethod
    def name(cls) -> str:
        return "millstream_replay"

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> ReplayReader:  # noqa: N802
        return ReplayReader(self.options)


class Slice(InputPartition):
    """Rows [start, end) of the recording."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Admits and reads rows.

    It has no state that a restart would miss: losing when the pace began only lets the pace
    begin again, at the offset that Spark has.
    """

    def __init__(
        self, options: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows = int(options["rows"])
        self._tasks = int(options["tasks"])
        self._limit = int(options["limit"]) if "limit" in options else None
        self._rate = float(options["rate"]) if "rate" in options else None
        self._speedup = float(options["speedup"]) if "speedup" in options else None
        self._time_column = options.get("time")
        self._spool = options["spool"]
        self._clock = clock
        self._began: tuple[int, float] | None = None
        self._everything = self._rate is None and self._speedup is None

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # All of a recording is available now; if nothing were due, Spark would end the run.
        self._everything = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        first = start["row"]
        if first > self._rows:
            raise ConfigError(
                f"the checkpoint is at row {first}, but the recording has {self._rows}; replay "
                "the recording that the checkpoint was made with, or use a new checkpoint"
            )
        end = self._rows if self._everything else min(self._due(first), self._rows)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        return {"row": max(first, end)}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """What is due now, for the backlog."""
        if self._everything:
            return {"row": self._rows}
        return None if self._began is None else {"row": min(self._due(self._began[0]), self._rows)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Slice]:
        first, rows = start["row"], end["row"] - start["row"]
        if rows <= 0:
            return []
        tasks = max(1, min(self._tasks, rows // TASK_ROWS))
        cuts = [first + rows * task // tasks for task in range(tasks + 1)]
        return [Slice(a, b) for a, b in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        with self._open() as spool:
            row = partition.start
            while row < partition.end:
                number, skipped = divmod(row, SPOOL_ROWS)
                batch = spool.get_batch(number).slice(skipped, partition.end - row)
                yield batch
                row += batch.num_rows

    def _due(self, first: int) -> int:
        now = self._clock()
        if self._began is None:
            self._began = (first, now)
        row, then = self._began
        if self._rate is not None:
            return row + int((now - then) * self._rate)
        assert self._speedup is not None
        if row >= self._rows:
            return self._rows
        until = self._times[row] + (now - then) * self._speedup * 1e6
        return int(np.searchsorted(self._times, until, side="right"))

    @cached_property
    def _times(self) -> Any:
        with self._open() as spool:
            columns = [
                microseconds(spool.get_batch(number).column(self._time_column))
                for number in range(spool.num_record_batches)
            ]
        return np.concatenate(columns)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        # An absolute path is used as it is; a bare name was sent by Spark.
        path = self._spool if os.path.isabs(self._spool) else SparkFiles.get(self._spool)
        with pa.memory_map(path) as file, pa.ipc.open_file(file) as spool:
            yield spool
