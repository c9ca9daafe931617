"""``ms.read``: the sources of a workflow.

Each function returns a description for ``workflow.source(name, ...)``; nothing is opened before the
workflow starts. Files end the run when they have been read, unless ``follow=True`` waits for new
ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.flow.paths import PathLike, path_text
from millstream.flow.sources import (
    DataFrameSource,
    FileFormat,
    FilesSource,
    KafkaSource,
    KafkaStart,
    RateSource,
    ReplaySource,
    Scan,
    SocketSource,
    TextSource,
)

Options = Mapping[str, str]


def text(
    path: PathLike,
    *,
    follow: bool = False,
    max_files_per_epoch: int | None = None,
    scan: Scan = "auto",
) -> TextSource:
    """Read the lines of text files: a file, a folder or a glob. Records are strings.

    Python tasks scan the files by themselves where they find the same lines as Spark's reader;
    ``scan="spark"`` always uses that.

    >>> flow = ms.Workflow("lines")
    >>> lines = flow.source("lines", ms.read.text("books/"))
    """
    return TextSource(
        path=path_text(path), follow=follow, max_files_per_epoch=max_files_per_epoch, scan=scan
    )


def parquet(
    path: PathLike,
    *,
    schema: str | pa.Schema | None = None,
    follow: bool = False,
    max_files_per_epoch: int | None = None,
    scan: Scan = "auto",
    options: Options | None = None,
) -> FilesSource:
    """Read Parquet files. Without ``schema``, it is that of the files that exist at the start.

    Python tasks scan the files by themselves where they find the same rows as Spark's reader;
    ``scan="spark"`` always uses that. ``options`` are passed to Spark's reader.

    >>> orders = ms.read.parquet("orders/", max_files_per_epoch=10)
    """
    return _files("parquet", path, schema, follow, max_files_per_epoch, options or {}, scan)


def json(
    path: PathLike,
    *,
    schema: str | pa.Schema,
    follow: bool = False,
    max_files_per_epoch: int | None = None,
    options: Options | None = None,
) -> FilesSource:
    """Read JSON lines. ``schema`` is a DDL string or a pyarrow schema.

    >>> events = ms.read.json("events/", schema="user string, at timestamp", follow=True)
    """
    return _files("json", path, schema, follow, max_files_per_epoch, options or {})


def csv(
    path: PathLike,
    *,
    schema: str | pa.Schema,
    header: bool = True,
    follow: bool = False,
    max_files_per_epoch: int | None = None,
    options: Options | None = None,
) -> FilesSource:
    """Read CSV files. ``schema`` is a DDL string or a pyarrow schema.

    With ``header``, the first line of each file names the columns, which must be those of the
    schema.

    >>> trades = ms.read.csv("trades.csv", schema="symbol string, price double")
    """
    header_options = {"header": str(header).lower(), "enforceSchema": "false"}
    given = {**header_options, **(options or {})}
    return _files("csv", path, schema, follow, max_files_per_epoch, given)


def rate(rows_per_second: int = 1) -> RateSource:
    """Make ``rows_per_second`` rows a second: ``timestamp``, and ``value`` counting from 0.

    >>> ticks = ms.read.rate(100)
    """
    return RateSource(rows_per_second=rows_per_second)


def socket(host: str, port: int) -> SocketSource:
    """Read lines from a TCP server. A socket cannot be rewound: for experiments only.

    >>> lines = ms.read.socket("localhost", 9999)
    """
    return SocketSource(host=host, port=port)


def replay(
    recording: PathLike | pa.Table | Sequence[Mapping[str, Any]],
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

    >>> clicks = ms.read.replay([{"user": "ann", "n": 1}, {"user": "bob", "n": 2}])
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


def kafka(
    servers: str,
    *topics: str,
    pattern: str | None = None,
    start: KafkaStart = "earliest",
    follow: bool = True,
    max_rows_per_epoch: int | None = None,
    options: Options | None = None,
) -> KafkaSource:
    """Read Kafka topics through Spark's connector, which is a package of its own.

    Rows have the columns ``key``, ``value`` (both binary), ``topic``, ``partition``, ``offset``
    and ``timestamp``. ``start`` is for a workflow without a checkpoint; with one it resumes from
    it. With ``follow=False`` the run ends at the offsets that are newest at its start.
    ``options`` are passed to the connector, such as ``{"kafka.security.protocol": "SSL"}``.

    >>> orders = ms.read.kafka("broker:9092", "orders", max_rows_per_epoch=100_000)
    """
    return KafkaSource(
        servers=servers,
        topics=topics,
        pattern=pattern,
        start=start,
        follow=follow,
        max_rows_per_epoch=max_rows_per_epoch,
        options=tuple(sorted((options or {}).items())),
    )


def dataframe(df: object, *, bounded: bool = False) -> DataFrameSource:
    """Read a streaming DataFrame of your own. ``bounded`` says that it ends by itself.

    ``workflow.source`` also takes such a DataFrame as it is.

    >>> frame = spark.readStream.format("rate").load()  # doctest: +SKIP
    >>> ticks = ms.read.dataframe(frame)  # doctest: +SKIP
    """
    return DataFrameSource(frame=df, ends=bounded)


def _files(
    format: FileFormat,
    path: PathLike,
    schema: str | pa.Schema | None,
    follow: bool,
    max_files_per_epoch: int | None,
    options: Options,
    scan: Scan = "auto",
) -> FilesSource:
    return FilesSource(
        path=path_text(path),
        format=format,
        schema=schema,
        follow=follow,
        max_files_per_epoch=max_files_per_epoch,
        scan=scan,
        options=tuple(sorted(options.items())),
    )


def _table_of(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    if not isinstance(records, Sequence) or not all(isinstance(r, Mapping) for r in records):
        raise ConfigError("read.replay() takes a path, a pyarrow.Table or a list of dicts")
    # pyarrow takes the columns of the first record and silently drops others.
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: [record.get(name) for record in records] for name in names})
