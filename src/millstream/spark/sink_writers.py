"""Opens sinks: how an epoch's output is staged, published and dropped, for each kind of sink.

A file sink stages with Spark's own writer and publishes by one rename, in the folders that
``coordinator/sink_folders.py`` describes. An epoch without rows leaves nothing. When to call what
is the engine's decision, not ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import ArrayType, MapType, StructType

from millstream.coordinator.sink_folders import STAGED, WITHDRAWN, SinkFolders, staged_folder
from millstream.coordinator.sink_layout import EPOCHS, EPOCHS_PATIENCE, OURS, locked
from millstream.errors import ConfigError, MillstreamError, WorkflowError
from millstream.flow import sinks as flow
from millstream.spark.compaction import merge_staged
from millstream.spark.folder import Folder
from millstream.spark.tuples import with_tuples

When = Literal["staged", "late"]

_SMALL = 1 << 16  # no file without rows is as large
WIDEST_CELL = 40


class UnsupportedColumnError(MillstreamError):
    """The format of a file sink does not support a column."""

    def __init__(self, path: str, format: str, column: str, type: str) -> None:
        super().__init__(path, format, column, type)
        self.path, self.format, self.column, self.type = path, format, column, type

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.format} does not support column {self.column!r} of type "
            f"{self.type}; make flat records before the sink, as in "
            ".map(lambda pair: (*pair[0], pair[1])), or write ms.write.parquet or ms.write.json"
        )


class SinkWriter(Protocol):
    """An open sink."""

    @property
    def when(self) -> When:
        """``staged``: publish after the commit. ``late``: publish before it, maybe twice."""

    def stage(self, frame: DataFrame, epoch: int, attempt: str) -> bool:
        """Evaluate the frame and store the result, invisibly.

        Returns whether there is anything to publish.
        """

    def publish(self, epoch: int, attempt: str) -> None:
        """Make the epoch visible; if it is visible already, do nothing."""

    def discard(self, epoch: int, attempt: str) -> None:
        """Drop what was staged."""


def open_sink(
    spark: SparkSession, sink: flow.Sink, *, committed: Collection[tuple[int, str]] | None = None
) -> SinkWriter:
    """Open a sink. Outputs staged by dead attempts are removed, except ``committed`` ones.

    These are (epoch, attempt) pairs that may still have to be published. Without them nothing
    staged is removed, since only the store knows what is committed.
    """
    match sink:
        case flow.FileSink():
            return FileWriter(spark, sink, committed)
        case flow.CallbackSink():
            return CallbackWriter(sink)
        case flow.ConsoleSink():
            return ConsoleWriter(sink)
        case flow.ForeachBatchSink():
            return ForeachBatchWriter(sink)
    raise WorkflowError(f"{type(sink).__name__} is not a sink", "use a function of ms.write")


class FileWriter(SinkFolders):
    """Writes one folder per epoch."""

    when: When = "staged"

    def __init__(
        self,
        spark: SparkSession,
        sink: flow.FileSink,
        committed: Collection[tuple[int, str]] | None,
    ) -> None:
        self._sink = sink
        self._format, options = _format_of(sink)
        self._folder = Folder(spark, sink.path)
        super().__init__(self._folder, sink.path)
        if self._folder.is_file(""):
            raise ConfigError(f"{sink.path} is a file; a sink writes a folder")
        self._options = {**options, **_commit_options(self._folder.is_plain_local)}
        self._claim()
        self.clean(committed)

    def stage(self, frame: DataFrame, epoch: int, attempt: str) -> bool:
        if "epoch" in (name.lower() for name in frame.columns):
            raise WorkflowError(
                f"the output for {self._sink.path} has a column 'epoch', which is also the name "
                "of the sink's folders",
                "rename the column",
            )
        if self._format == "csv":
            self._check_flat(frame.schema)
        staged = staged_folder(epoch, attempt)
        self._folder.delete(staged)
        if self._folder.is_plain_local:
            self._folder.make_local(f"{staged}/_temporary/0/_temporary")
        # "append", as we have just emptied it and "overwrite" would remove what was made.
        writer = frame.write.format(self._format).options(**self._options).mode("append")
        writer.save(self._folder.text(staged))
        if not self._has_rows(staged, frame.columns):
            self._folder.delete(staged)
            return False
        if self._folder.is_plain_local:
            merge_staged(Path(self._folder.local("")), Path(self._folder.local(staged)))
        return True

    def _has_rows(self, staged: str, columns: list[str]) -> bool:
        """Whether any rows were written: a task without rows writes no file, but for the first."""
        files = [name for name in self._folder.names(staged) if name.startswith("part-")]
        if len(files) != 1:
            return bool(files)
        start = self._folder.read_start(f"{staged}/{files[0]}", _SMALL)
        if len(start) == _SMALL:
            return True
        if self._format == "parquet":
            return int(pq.ParquetFile(pa.BufferReader(start)).metadata.num_rows) > 0
        header = 1 + "".join(columns).count("\n") if self._options.get("header") == "true" else 0
        return start.count(b"\n") > header

    def _check_flat(self, schema: StructType) -> None:
        for field in schema:
            if isinstance(field.dataType, StructType | ArrayType | MapType):
                kind = field.dataType.simpleString()
                raise UnsupportedColumnError(self._sink.path, self._format, field.name, kind)

    def _exclusive(self) -> AbstractContextManager[None]:
        """Exclude a compaction, which could restore what is being removed."""
        if not self._folder.is_plain_local:
            return nullcontext()
        return locked(Path(self._folder.local("")), EPOCHS, wait=EPOCHS_PATIENCE)

    def _claim(self) -> None:
        """Mark the folder as ours; reject one with files of others."""
        names = self._folder.names("")
        if OURS not in names and any(not name.startswith(".") for name in names):
            raise ConfigError(
                f"{self._sink.path} contains files that Millstream did not write; give the sink "
                "an empty or new folder, or move the files"
            )
        markers = [f"format={self._format}"]
        if "header" in self._options:
            markers.append(f"header={self._options['header']}")
        for marker in markers:
            kind = marker.partition("=")[0]
            written = [n for n in self._folder.names(OURS) if n.startswith(f"{kind}=")]
            if written not in ([], [marker]):
                raise ConfigError(
                    f"{self._sink.path} was written with {written[0]}, and this sink has {marker}; "
                    "readers could not read a mixture, so give the sink a new folder"
                )
        for folder in (*(f"{OURS}/{marker}" for marker in markers), STAGED, WITHDRAWN):
            self._folder.make(folder)


class CollectingWriter(ABC):
    """Collects an epoch in the driver and delivers it when it is published."""

    when: When = "late"

    def __init__(self) -> None:
        self._staged: dict[tuple[int, str], tuple[pa.Table, StructType]] = {}

    def stage(self, frame: DataFrame, epoch: int, attempt: str) -> bool:
        # All of it, also for a console: staging must evaluate every partition.
        self._staged[epoch, attempt] = (frame.toArrow(), frame.schema)
        return True

    def publish(self, epoch: int, attempt: str) -> None:
        if staged := self._staged.get((epoch, attempt)):
            self.deliver(epoch, *staged)
            self.discard(epoch, attempt)

    def discard(self, epoch: int, attempt: str) -> None:
        self._staged.pop((epoch, attempt), None)

    @abstractmethod
    def deliver(self, epoch: int, table: pa.Table, schema: StructType) -> None: ...


class CallbackWriter(CollectingWriter):
    """Hands an epoch's rows to the user's function. What it raises goes up unchanged."""

    def __init__(self, sink: flow.CallbackSink) -> None:
        super().__init__()
        self.function = sink.function

    def deliver(self, epoch: int, table: pa.Table, schema: StructType) -> None:
        rows = ArrowTableToRowsConversion.convert(table, schema)
        self.function(with_tuples(rows, schema), epoch)


class ConsoleWriter(CollectingWriter):
    """Prints the first rows of an epoch."""

    def __init__(self, sink: flow.ConsoleSink) -> None:
        super().__init__()
        self._rows = sink.rows

    def deliver(self, epoch: int, table: pa.Table, schema: StructType) -> None:
        print(describe_epoch(epoch, table, self._rows), flush=True)


class ForeachBatchWriter:
    """Hands an epoch's DataFrame to the user's function. What it raises goes up unchanged."""

    when: When = "late"

    def __init__(self, sink: flow.ForeachBatchSink) -> None:
        self.function = sink.function

    def stage(self, frame: DataFrame, epoch: int, attempt: str) -> bool:
        self.function(frame, epoch)
        return False

    def publish(self, epoch: int, attempt: str) -> None:
        pass

    def discard(self, epoch: int, attempt: str) -> None:
        pass


def describe_epoch(epoch: int, table: pa.Table, rows: int) -> str:
    """Lay out the first rows of an epoch as a small table."""
    first, total = table.slice(0, rows), table.num_rows
    title = f"epoch {epoch}: {total} rows" + (f", first {rows}" if rows < total else "")
    columns = [
        [_cell(value) for value in (name, *column.to_pylist())]
        for name, column in zip(first.column_names, first.columns, strict=True)
    ]
    widths = [max(map(len, cells)) for cells in columns]
    header, *body = (
        " | ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True)
    )
    return "\n".join([title, header, "-+-".join("-" * width for width in widths), *body])


def _commit_options(plain_local: bool) -> dict[str, str]:
    # In version 2 tasks move their files into place, which saves the driver a rename per
    # file. Its drawback, visible partial output, cannot happen in a staged folder;
    # and a task has one file, whose name does not depend on the attempt.
    options = {
        "mapreduce.fileoutputcommitter.algorithm.version": "2",
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if plain_local:  # no .crc files: each costs a second create and a forked chmod
        options["fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
        options["fs.file.impl.disable.cache"] = "true"
    return options


def _format_of(sink: flow.FileSink) -> tuple[str, dict[str, str]]:
    match sink:
        case flow.ParquetSink():
            return "parquet", {}
        case flow.JsonSink():
            return "json", {}
        case flow.CsvSink():
            return "csv", {"header": str(sink.header).lower()}
    raise WorkflowError(
        f"{type(sink).__name__} has no writer",
        "use ms.write.parquet, ms.write.json or ms.write.csv",
    )


def _cell(value: object) -> str:
    text = "" if value is None else str(value).replace("\n", "\\n")
    return text if len(text) <= WIDEST_CELL else f"{text[: WIDEST_CELL - 1]}…"
