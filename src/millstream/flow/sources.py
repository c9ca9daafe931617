"""What a workflow reads: frozen descriptions of sources, checked when they are made.

Nothing is opened here and Spark is not imported: ``millstream.spark.sources`` turns a
description into a streaming DataFrame when the workflow starts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from millstream.errors import ConfigError, WorkflowError

FileFormat = Literal["parquet", "json", "csv"]


@dataclass(frozen=True, kw_only=True, eq=False)  # else those below without fields are all equal
class Source:
    """The base of all sources."""

    @property
    def bounded(self) -> bool:
        """Whether the run ends by itself when everything has been read."""
        return False


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """The base of sources that read the files of a folder, a file, or a glob."""

    path: str
    follow: bool = False
    max_files_per_epoch: int | None = None

    def __post_init__(self) -> None:
        _check_path(self.path)
        _check_count("max_files_per_epoch", self.max_files_per_epoch)

    @property
    def bounded(self) -> bool:
        return not self.follow


@dataclass(frozen=True, kw_only=True)
class TextSource(FolderSource):
    """The lines of text files, as one column ``value``."""


@dataclass(frozen=True, kw_only=True)
class FilesSource(FolderSource):
    """The rows of Parquet, JSON or CSV files."""

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
        for name, value in self.options:
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(f"options are strings, got {name!r}: {value!r}")


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    """Rows made by a clock: ``timestamp``, and ``value`` counting from 0."""

    rows_per_second: int = 1

    def __post_init__(self) -> None:
        _check_count("rows_per_second", self.rows_per_second)


@dataclass(frozen=True, kw_only=True)
class SocketSource(Source):
    """The lines that a TCP server sends, as one column ``value``."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not self.host or not isinstance(self.host, str):
            raise ConfigError(f"host must be a name or an address, got {self.host!r}")
        if not _is_int(self.port) or not 0 < self.port < 65536:
            raise ConfigError(f"port must be between 1 and 65535, got {self.port!r}")


# Compared by identity: comparing two recordings row by row is never what a caller means, and
# the copy that Spark reads is kept per description.
@dataclass(frozen=True, kw_only=True, eq=False)
class ReplaySource(Source):
    """A recording, read again in the same order and, if asked, at a pace."""

    recording: str | pa.Table
    rate: float | None = None
    speedup: float | None = None
    time_column: str | None = None
    rows_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.recording, str):
            _check_path(self.recording)
        elif not isinstance(self.recording, pa.Table):
            raise ConfigError(
                "replay() takes a path, a pyarrow.Table or a list of dicts, "
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

    frame: object
    ends: bool = False

    def __post_init__(self) -> None:
        streaming = getattr(self.frame, "isStreaming", None)
        if streaming is None:
            raise WorkflowError(
                f"dataframe_source() takes a streaming DataFrame, got {type(self.frame).__name__}",
                "make one with spark.readStream",
            )
        if not streaming:
            raise WorkflowError(
                "dataframe_source() was given a DataFrame that is not streaming",
                "read it with spark.readStream, or write it to files and use files() or replay()",
            )

    @property
    def bounded(self) -> bool:
        return self.ends


def text(
    path: str | os.PathLike[str], *, follow: bool = False, max_files_per_epoch: int | None = None
) -> TextSource:
    """Read the lines of text files.

    The run ends when all files have been read, unless ``follow`` waits for new ones.
    """
    return TextSource(path=_path_text(path), follow=follow, max_files_per_epoch=max_files_per_epoch)


def files(
    path: str | os.PathLike[str],
    *,
    format: FileFormat,
    schema: str | pa.Schema | None = None,
    follow: bool = False,
    max_files_per_epoch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> FilesSource:
    """Read Parquet, JSON or CSV files.

    ``schema`` is a DDL string or a pyarrow schema. JSON and CSV need it; for Parquet it is
    taken from the files that exist at the start. ``options`` go to Spark's reader as they are.
    """
    return FilesSource(
        path=_path_text(path),
        format=format,
        schema=schema,
        follow=follow,
        max_files_per_epoch=max_files_per_epoch,
        options=tuple(sorted((options or {}).items())),
    )


def rate(rows_per_second: int = 1) -> RateSource:
    """Make ``rows_per_second`` numbered rows a second, for ever."""
    return RateSource(rows_per_second=rows_per_second)


def socket(host: str, port: int) -> SocketSource:
    """Read lines from a TCP server. A socket cannot be rewound: for trying out only."""
    return SocketSource(host=host, port=port)


def replay(
    recording: str | os.PathLike[str] | pa.Table | Sequence[Mapping[str, Any]],
    *,
    rate: float | None = None,
    speedup: float | None = None,
    time_column: str | None = None,
    rows_per_epoch: int | None = None,
) -> ReplaySource:
    """Replay recorded rows, always the same rows in the same order.

    The recording is a file or folder (Parquet, CSV, JSON lines, Arrow), read in the order of the
    file names, or a ``pyarrow.Table`` or list of dicts. With ``time_column`` the rows are sorted
    by it, in memory. ``rate`` is in rows per second; ``speedup`` is a multiple of the recorded
    pace; with neither, rows come as fast as ``rows_per_epoch`` admits them.
    """
    if isinstance(recording, os.PathLike):
        recording = os.fspath(recording)
    elif not isinstance(recording, str | pa.Table):
        recording = _table_of(recording)
    return ReplaySource(
        recording=recording,
        rate=rate,
        speedup=speedup,
        time_column=time_column,
        rows_per_epoch=rows_per_epoch,
    )


def dataframe_source(df: object, *, bounded: bool = False) -> DataFrameSource:
    """Read a streaming DataFrame of your own. ``bounded`` says that it ends by itself."""
    return DataFrameSource(frame=df, ends=bounded)


def check_column(names: Sequence[str], wanted: str) -> None:
    """Refuse a recording that has no column ``wanted``."""
    if wanted not in names:
        raise ConfigError(f"the recording has no column {wanted!r}; it has {', '.join(names)}")


def _table_of(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    if not isinstance(records, Sequence) or not all(isinstance(r, Mapping) for r in records):
        raise ConfigError("replay() takes a path, a pyarrow.Table or a list of dicts")
    # pyarrow takes the columns from the first record only and drops the others in silence.
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: [record.get(name) for record in records] for name in names})


def _path_text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _check_path(path: str) -> None:
    if not isinstance(path, str) or not path:
        raise ConfigError(f"path must be a non-empty string or path, got {path!r}")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not _is_int(value) or value < 1):
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def _check_pace(name: str, value: float | None) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a number above 0, got {value!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
