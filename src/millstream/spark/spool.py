"""Copies a recording, in its final order and types, into one Arrow file: the spool.

All batches of a spool but the last have the same number of rows, so that any row is found by
division. A recording that changes later changes nothing for a stream that is open. How the spool
becomes a stream is ``millstream.spark.replay``'s business.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.flow.sources import ReplaySource, check_column

SPOOL_ROWS = 8192
FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "ipc",
    ".feather": "ipc",
}


@dataclass(frozen=True)
class Spool:
    """A recording in its final order and types, as one Arrow file on the driver."""

    path: str
    rows: int
    schema: StructType


_spools: WeakKeyDictionary[ReplaySource, Spool] = WeakKeyDictionary()


def spool_of(source: ReplaySource) -> Spool:
    """Copy a recording, once per description; the copy lives as long as the driver."""
    if source not in _spools:
        _spools[source] = _write_spool(source)
    return _spools[source]


def _write_spool(source: ReplaySource) -> Spool:
    handle, path = tempfile.mkstemp(prefix="millstream-replay-", suffix=".arrow")
    os.close(handle)
    atexit.register(Path(path).unlink, missing_ok=True)
    rows = 0
    try:
        recorded, batches = _recorded(source)
        schema = _spark_schema(recorded)
        arrow_schema = to_arrow_schema(schema, timezone="UTC")
        with pa.ipc.new_file(path, arrow_schema) as writer:
            for batch in _even(_cast(batch, arrow_schema) for batch in batches):
                writer.write_batch(batch)
                rows += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise ConfigError(
            f"cannot read the recording: {problem}; or read it with pyarrow yourself, and give "
            "replay() the table"
        ) from problem
    return Spool(path, rows, schema)


def _recorded(source: ReplaySource) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    recording = source.recording
    data = _dataset(recording) if isinstance(recording, str) else recording
    if source.time_column is None:
        return data.schema, data.to_batches()
    check_column(data.schema.names, source.time_column)
    table = pa.Table.from_batches(data.to_batches(), data.schema)
    times = table.column(source.time_column)
    if times.null_count:
        raise ConfigError(
            f"time_column {source.time_column!r} has {times.null_count} empty values; remove "
            "those rows, or fill them"
        )
    microseconds(times.slice(0, 0))
    # Stable: rows of equal time stay in recorded order.
    table = table.sort_by(source.time_column)
    return table.schema, table.to_batches()


def _dataset(path: str) -> Any:
    if "://" in path:
        files, root = pa.fs.FileSystem.from_uri(path)
    else:
        files, root = pa.fs.LocalFileSystem(), os.path.abspath(path)
    kind = files.get_file_info(root).type
    if kind == pa.fs.FileType.NotFound:
        raise ConfigError(f"the recording {path} does not exist")
    names, base = [root], str(Path(root).parent)
    if kind == pa.fs.FileType.Directory:
        found = files.get_file_info(pa.fs.FileSelector(root, recursive=True))
        # By name, so that the order is the same on every file system.
        names, base = sorted(info.path for info in found if _is_data(info, root)), root
    formats = {FORMATS.get(Path(name).suffix, "unknown") for name in names}
    if len(formats) != 1 or "unknown" in formats:
        raise ConfigError(
            f"{path} must contain files of one kind ({', '.join(FORMATS)}), and holds "
            f"{', '.join(sorted({Path(name).suffix or 'no suffix' for name in names})) or '-'}"
        )
    return pa.dataset.dataset(
        names,
        format=formats.pop(),
        filesystem=files,
        partitioning="hive",
        partition_base_dir=base,
    )


def _is_data(info: Any, root: str) -> bool:
    parts = Path(info.path).relative_to(root).parts
    return info.is_file and not any(part.startswith(("_", ".")) for part in parts)


def _even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches again so that all but the last have ``SPOOL_ROWS`` rows."""
    buffered: list[pa.RecordBatch] = []
    for batch in batches:
        buffered.append(batch)
        if sum(each.num_rows for each in buffered) >= SPOOL_ROWS:
            joined = pa.concat_batches(buffered)
            full = joined.num_rows - joined.num_rows % SPOOL_ROWS
            for start in range(0, full, SPOOL_ROWS):
                yield joined.slice(start, SPOOL_ROWS)
            buffered = [joined.slice(full)]
    if any(each.num_rows for each in buffered):
        yield pa.concat_batches(buffered)


def _spark_schema(schema: pa.Schema) -> StructType:
    fields = [pa.field(field.name, _plain_type(field.type)) for field in schema]
    try:
        return from_arrow_schema(pa.schema(fields))
    except PySparkTypeError as problem:
        raise ConfigError(
            f"the recording has a type that Spark does not know: {problem}; cast the column first"
        ) from problem


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Choose the nearest type that Spark knows."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if pa.types.is_date64(kind):
        return pa.date32()
    return kind


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # Spark has microseconds: finer times are truncated. Other misfits are errors.
    columns = [
        column.cast(field.type, safe=not pa.types.is_temporal(field.type))
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def microseconds(times: Any) -> Any:
    """Read times as microseconds; plain numbers are seconds."""
    kind = times.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return times.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return times.cast(pa.float64()).to_numpy(zero_copy_only=False) * 1e6
    raise ConfigError(f"time_column must contain times, dates or numbers of seconds, not {kind}")
