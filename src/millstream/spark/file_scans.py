"""Plans which tasks scan the files of an epoch in Python, in place of Spark's readers.

Spark fixes the files of an epoch and their splits; both are read from its physical plan, so a
retry has the same ones. An epoch that Arrow might read otherwise is left to Spark's readers.
"""

from __future__ import annotations

import json
import logging
import pickle
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.flow.plan import Plan
from millstream.flow.scans import spark_readers
from millstream.flow.sources import TextSource
from millstream.flow.vertices import SourceVertex
from millstream.spark.planned_files import LeftToSparkError, PlannedFiles
from millstream.spark.stage import SOURCE_TAG
from millstream.work.scans.parquet import difference
from millstream.work.scans.scan import Format, ScanTask

log = logging.getLogger("millstream")

_PASSED = {"WholeStageCodegenExec", "InputAdapter", "UnionExec", "ProjectExec", "ColumnarToRowExec"}
_OFF = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.parquet.int96TimestampConversion",
)
_REBASING = (
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.int96RebaseModeInRead",
)
_ZONE = "spark.sql.session.timeZone"
_THREADS = 8
_MOST_SUFFIXES = 1000


@dataclass(frozen=True)
class FileScan:
    """The tasks that scan the files of an epoch, each with the counter of its source's rows."""

    tasks: tuple[tuple[ScanTask, Accumulator[int]], ...]
    metrics: tuple[tuple[Any, Accumulator[int]], ...]

    def begin(self) -> tuple[bytes, ...]:
        """The tasks of a try. Rows that were read since the last report do not count.

        Each is pickled by itself: every worker gets all of them, and unpickles its own.
        """
        for _, counter in self.tasks:
            counter.value = 0
        return tuple(map(pickle.dumps, self.tasks))

    def report(self) -> None:
        """Move the counts to Spark's metrics of the epoch, which its progress reports show."""
        for metric, counter in self.metrics:
            metric.add(counter.value)
            counter.value = 0


class FileScans:
    """Plans the scans of a run, epoch by epoch."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        schemas: Mapping[int, StructType],
        branches: tuple[int, ...],
    ) -> None:
        """``schemas`` are those of the sources, ``branches`` those of the admitted DataFrame."""
        self._spark = spark
        self._schemas = schemas
        self._branches = branches
        self._enabled = not spark_readers(plan)
        self._formats: dict[int, Format] = {
            at: "text" if isinstance(vertex.source, TextSource) else "parquet"
            for at, vertex in plan.of_kind(SourceVertex)
        }
        self._settings: dict[str, str] = {}
        self._compressed: dict[str, bool] = {}
        self._logged: set[str] = set()

    def spark_plan(self) -> Any:
        """Spark's physical plan of the epoch whose callback runs in this thread."""
        return self._query.lastExecution().executedPlan() if self._enabled else None

    def of_epoch(self, session: SparkSession, plan: Any) -> FileScan | None:
        """The scan of the files in such a plan; None if they are empty, or Spark reads them.

        ``session`` is that of the query.
        """
        if plan is None:
            return None
        if not self._settings:
            self._settings = {
                name: session.conf.get(name) or "" for name in (*_OFF, *_REBASING, _ZONE)
            }
        try:
            found = list(self._nodes(plan))
            tasks = [task for source, node in found for task in self._tasks(source, node)]
        except LeftToSparkError as reason:
            if str(reason) not in self._logged:
                self._logged.add(str(reason))
                log.info("Spark's readers read an epoch, because of %s", reason)
            return None
        if not tasks:
            return None
        counters = self._counters
        return FileScan(
            tuple((task, counters[task.source]) for task in tasks),
            tuple((node.metrics().apply("numOutputRows"), counters[at]) for at, node in found),
        )

    @cached_property
    def _query(self) -> Any:
        """The query that calls back, from inside the JVM."""
        identity = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        query = self._spark.streams.get(identity or "")
        assert query is not None
        return query._jsq.streamingQuery()

    @cached_property
    def _counters(self) -> dict[int, Accumulator[int]]:
        return {source: self._spark.sparkContext.accumulator(0) for source in self._formats}

    @cached_property
    def _codecs(self) -> Any:
        jvm: Any = self._spark._jvm
        conf = self._spark.sparkContext._jsc.hadoopConfiguration()
        return jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(conf)

    def _nodes(self, plan: Any) -> Iterator[tuple[int, Any]]:
        """The scans of files in the epoch's plan, each with its source."""
        tagged = len(self._branches) > 1
        at: int | None = None if tagged else self._branches[0]
        pending = [(plan, at)]
        while pending:
            node, at = pending.pop()
            kind = node.getClass().getSimpleName()
            if kind == "ProjectExec" and tagged:
                at = self._branch_of(node)
                if at < 0:
                    continue  # heartbeats
            if kind == "FileSourceScanExec" and at is not None:
                yield at, node
            elif kind in _PASSED:
                children = node.children()
                pending += [(children.apply(each), at) for each in range(children.size())]
            elif kind != "LocalTableScanExec":  # a source without new files
                raise LeftToSparkError(f"{kind} in its plan")

    def _branch_of(self, project: Any) -> int:
        column = project.projectList().head()
        if column.name() != SOURCE_TAG or column.child().nodeName() != "Literal":
            raise LeftToSparkError("columns in another order in its plan")
        return self._branches[int(column.child().value())]

    def _tasks(self, source: int, node: Any) -> list[ScanTask]:
        struct, format_ = self._schemas[source], self._formats[source]
        folders = StructType.fromJson(json.loads(node.relation().partitionSchema().json()))
        self._check_settings()
        _check_columns(struct, folders)
        schema = to_arrow_schema(struct, timezone=self._settings[_ZONE])
        partition = pa.schema([schema.field(name) for name in folders.names])
        splits = PlannedFiles(self._spark._jvm, node, partition).splits()
        paths = {split.path for task in splits for split in task}
        if format_ == "text":
            self._check_texts(paths)
        else:
            self._check_parquet(paths, [f for f in schema if f.name not in partition.names])
        return [ScanTask(source, format_, schema, task) for task in splits]

    def _check_settings(self) -> None:
        for name in _OFF:
            if self._settings[name] != "false":
                raise LeftToSparkError(name)

    def _check_texts(self, paths: Iterable[str]) -> None:
        jvm: Any = self._spark._jvm
        if len(self._compressed) > _MOST_SUFFIXES:  # of names with the time or a number
            self._compressed.clear()
        for name in map(posixpath.basename, paths):
            suffix = name.partition(".")[2]
            if suffix not in self._compressed:
                path = jvm.org.apache.hadoop.fs.Path(f"/x.{suffix}")
                self._compressed[suffix] = self._codecs.getCodec(path) is not None
            if self._compressed[suffix]:
                raise LeftToSparkError(f"compressed text, .{suffix}")

    def _check_parquet(self, paths: Iterable[str], columns: list[pa.Field]) -> None:
        rebased = any(self._settings[name] != "CORRECTED" for name in _REBASING)
        check = partial(difference, wanted=pa.schema(columns), rebased=rebased)
        with ThreadPoolExecutor(_THREADS) as threads:
            for reason in threads.map(check, paths):
                if reason is not None:
                    raise LeftToSparkError(f"a file: {reason}")


def _check_columns(struct: StructType, folders: StructType) -> None:
    if any(field.metadata or "." in field.name for field in struct):
        raise LeftToSparkError("a column with metadata, or a dot in its name")
    kinds = {field.name: field.dataType for field in struct}
    if any(kinds.get(field.name) != field.dataType for field in folders):
        raise LeftToSparkError("partition columns of other types")
    if len(folders) == len(struct):
        raise LeftToSparkError("no columns but those of folders")
