"""Frozen descriptions of sources, validated when they are made.

Users make them with the functions of ``read.py``. Nothing is opened here and Spark is not
imported: ``millstream.spark.source_frames`` turns a description into a streaming DataFrame when the
workflow starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import pyarrow as pa

from millstream.errors import ConfigError, WorkflowError
from millstream.flow.paths import check_path

FileFormat = Literal["parquet", "json", "csv"]
KafkaStart = Literal["earliest", "latest"]
Scan = Literal["auto", "spark"]


@dataclass(frozen=True, kw_only=True, eq=False)  # else those below without fields are all equal
class Source:
    """The base of all sources.

    Checkpoints record the ``kind`` of each source: it does not change.
    """

    kind: ClassVar[str]

    @property
    def bounded(self) -> bool:
        """Whether the run ends by itself when everything has been read."""
        return False

    @property
    def forgets(self) -> bool:
        """Whether rows may be gone when Spark has committed their epoch to the source."""
        return False


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """The base of sources that read the files of a folder, a file, or a glob."""

    path: str
    follow: bool = False
    max_files_per_epoch: int | None = None
    scan: Scan = "auto"

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_count("max_files_per_epoch", self.max_files_per_epoch)
        if self.scan not in get_args(Scan):
            allowed = ", ".join(get_args(Scan))
            raise ConfigError(f"scan must be one of {allowed}, got {self.scan!r}")

    @property
    def bounded(self) -> bool:
        return not self.follow


@dataclass(frozen=True, kw_only=True)
class TextSource(FolderSource):
    """The lines of text files, as one column ``value``."""

    kind: ClassVar[str] = "text"


@dataclass(frozen=True, kw_only=True)
class FilesSource(FolderSource):
    """The rows of Parquet, JSON or CSV files."""

    kind: ClassVar[str] = "files"
    format: FileFormat
    schema: str | pa.Schema | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in get_args(FileFormat):
            allowed = ", ".join(get_args(FileFormat))
            raise ConfigError(f"format must be one of {allowed}, got {self.format!r}")
        if self.schema is None and self.format != "parquet":
            raise ConfigError(
                f"{self.format} files need a schema, because a stream cannot look ahead to infer "
                'one; give schema="name string, amount bigint" or a pyarrow schema'
            )
        if self.schema == "" or not isinstance(self.schema, str | pa.Schema | None):
            raise ConfigError(f"schema must be a DDL string or a pyarrow schema: {self.schema!r}")
        _check_options(self.options)

    @property
    def forgets(self) -> bool:
        chosen = {name.lower(): value.lower() for name, value in self.options}
        return chosen.get("cleansource", "off") != "off"


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    """Rows made by a clock: ``timestamp``, and ``value`` counting from 0."""

    kind: ClassVar[str] = "rate"
    rows_per_second: int = 1

    def __post_init__(self) -> None:
        _check_count("rows_per_second", self.rows_per_second)


@dataclass(frozen=True, kw_only=True)
class SocketSource(Source):
    """The lines that a TCP server sends, as one column ``value``."""

    kind: ClassVar[str] = "socket"
    host: str
    port: int

    def __post_init__(self) -> None:
        if not self.host or not isinstance(self.host, str):
            raise ConfigError(f"host must be a name or an address, got {self.host!r}")
        if not _is_int(self.port) or not 0 < self.port < 65536:
            raise ConfigError(f"port must be between 1 and 65535, got {self.port!r}")

    @property
    def forgets(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """The records of Kafka topics, through Spark's Kafka connector."""

    kind: ClassVar[str] = "kafka"
    servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: KafkaStart = "earliest"
    follow: bool = True
    max_rows_per_epoch: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.servers, str) or ":" not in self.servers:
            raise ConfigError(
                f'servers must be "host:port", or several with commas between, got {self.servers!r}'
            )
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigError("give either topics or pattern=, a regular expression of their names")
        for topic in self.topics:
            if not isinstance(topic, str) or not topic or "," in topic:
                raise ConfigError(f"a topic must be a name without commas, got {topic!r}")
        if self.start not in get_args(KafkaStart):
            allowed = ", ".join(get_args(KafkaStart))
            raise ConfigError(f"start must be one of {allowed}, got {self.start!r}")
        _check_count("max_rows_per_epoch", self.max_rows_per_epoch)
        _check_options(self.options)

    @property
    def bounded(self) -> bool:
        return not self.follow


# Compared by identity: comparing two recordings row by row is never what a caller means, and
# the copy that Spark reads is cached per description.
@dataclass(frozen=True, kw_only=True, eq=False)
class ReplaySource(Source):
    """A recording, read again in the same order and, if asked, at a pace."""

    kind: ClassVar[str] = "replay"
    recording: str | pa.Table
    rate: float | None = None
    speedup: float | None = None
    time_column: str | None = None
    rows_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.recording, str):
            check_path(self.recording)
        elif not isinstance(self.recording, pa.Table):
            raise ConfigError(
                "read.replay() takes a path, a pyarrow.Table or a list of dicts, "
                f"got {type(self.recording).__name__}"
            )
        elif self.recording.num_columns == 0:
            raise ConfigError("the recording has no columns; give at least one non-empty record")
        _check_pace("rate", self.rate)
        _check_pace("speedup", self.speedup)
        _check_count("rows_per_epoch", self.rows_per_epoch)
        if self.rate is not None and self.speedup is not None:
            raise ConfigError("rate and speedup exclude each other; give one of them")
        if self.speedup is not None and self.time_column is None:
            raise ConfigError("speedup needs time_column, the column that holds the recorded time")
        if self.time_column is not None and isinstance(self.recording, pa.Table):
            check_column(self.recording.column_names, self.time_column)

    @property
    def bounded(self) -> bool:
        return True

    @property
    def paced(self) -> bool:
        """Whether a clock decides which rows are due.

        ``Trigger.AvailableNow`` would take all rows at once; run a paced replay with a
        processing-time trigger and stop it at ``millstream.spark.replay.replay_end``.
        """
        return self.rate is not None or self.speedup is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class DataFrameSource(Source):
    """A streaming DataFrame that the user made. It is typed as ``object`` to keep Spark out."""

    kind: ClassVar[str] = "dataframe"
    frame: object
    ends: bool = False

    def __post_init__(self) -> None:
        streaming = getattr(self.frame, "isStreaming", None)
        if streaming is None:
            raise WorkflowError(
                f"read.dataframe() takes a streaming DataFrame, got {type(self.frame).__name__}",
                "make one with spark.readStream",
            )
        if not streaming:
            raise WorkflowError(
                "read.dataframe() was given a DataFrame that is not streaming",
                "read it with spark.readStream, or write it to files and use ms.read.parquet or "
                "ms.read.replay",
            )

    @property
    def bounded(self) -> bool:
        return self.ends

    @property
    def forgets(self) -> bool:
        return True  # it may be any source


def check_column(names: Sequence[str], wanted: str) -> None:
    """Reject a recording without a column ``wanted``."""
    if wanted not in names:
        raise ConfigError(f"the recording has no column {wanted!r}; it has {', '.join(names)}")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not _is_int(value) or value < 1):
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def _check_options(options: tuple[tuple[str, str], ...]) -> None:
    for name, value in options:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"options are strings, got {name!r}: {value!r}")


def _check_pace(name: str, value: float | None) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a number above 0, got {value!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
