"""The rows of a split of a Parquet file, and which files Arrow reads exactly as Spark does.

A split owns the row groups whose middle it contains, as in Spark. Arrow reads a column as Spark
does if it finds in the file the very type that Spark would send; Spark widens, renames, rebases and
fills in columns by rules of its own, and files that need these are left to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_BATCH_BYTES = 16 << 20
_STEP = 1000  # rows, where their size is known only when they are decoded
_FLAT: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def read_rows(
    path: str, start: int, length: int, columns: Sequence[str], most: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in batches of so many at most, or of a few megabytes."""
    with _opened(path) as file:
        every = range(file.metadata.num_row_groups)
        groups = {at: file.metadata.row_group(at) for at in every}
        owned = [at for at in every if _middle(groups[at]) in range(start, start + length)]
        size = sum(groups[at].total_byte_size for at in owned)
        fitting = sum(groups[at].num_rows for at in owned) * _BATCH_BYTES // max(size, 1)
        rows = min(most, max(fitting, 1))
        repeated = any(_may_repeat(groups[at], columns) for at in owned)
        batches = file.iter_batches(
            min(rows, _STEP) if repeated else rows,
            row_groups=owned,
            columns=list(columns),
            use_threads=False,
        )
        yield from _merged(batches, rows) if repeated else batches


def _may_repeat(group: pq.RowGroupMetaData, columns: Sequence[str]) -> bool:
    """Whether texts may be far larger than in the file, which has those that repeat once."""
    chunks = (group.column(at) for at in range(group.num_columns))
    return any(
        chunk.physical_type == "BYTE_ARRAY"
        and chunk.has_dictionary_page
        and chunk.path_in_schema in columns
        for chunk in chunks
    )


def _merged(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows at most, or of a few megabytes."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > most or size + batch.nbytes > _BATCH_BYTES):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield pa.concat_batches(held)


def _middle(group: pq.RowGroupMetaData) -> int:
    columns = [group.column(at) for at in range(group.num_columns)]
    first = columns[0]
    start = first.data_page_offset
    if first.dictionary_page_offset is not None:
        start = min(start, first.dictionary_page_offset)
    return int(start + sum(column.total_compressed_size for column in columns) // 2)


def difference(path: str, wanted: pa.Schema, *, rebased: bool) -> str | None:
    """Why Arrow may read columns of a file otherwise than Spark; None if it reads the same.

    ``rebased`` says whether Spark may change old dates in files that no Spark has written.
    """
    try:
        with _opened(path) as file:
            if _has_signature(path, file.metadata):
                return "columns may be encrypted"
            found, about = file.schema_arrow, file.metadata.metadata or {}
            leaves = [file.schema.column(at) for at in range(file.metadata.num_columns)]
    except (OSError, pa.ArrowException):
        return "Arrow cannot open it"
    instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    names = [name.lower() for name in found.names]
    for field in wanted:
        if field.name not in found.names or names.count(field.name.lower()) > 1:
            return f"it has no single column {field.name}"
        kind = found.field(field.name).type
        if not _same(kind, field.type, utc=field.name in instants):
            return f"column {field.name} is {kind}, not {field.type}"
    times = any(pa.types.is_timestamp(f.type) or pa.types.is_date(f.type) for f in wanted)
    return "its dates may have to be rebased" if times and _is_legacy(about, rebased) else None


def _has_signature(path: str, about: pq.FileMetaData) -> bool:
    """Whether a signature follows the metadata, as in files with encrypted columns.

    Arrow ends the process when it is asked about a column for which it has no key.
    """
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
    return length != int(about.serialized_size)


def _opened(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _same(found: pa.DataType, wanted: pa.DataType, *, utc: bool) -> bool:
    """Whether types are the same; ``utc`` if an instant is stored without its time zone."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        # Spark sends the time zone of its session; the instants are the same.
        return found.unit == wanted.unit and (utc or found.tz is not None) == bool(wanted.tz)
    return any(holds(wanted) for holds in _FLAT) and bool(found == wanted)


def _is_legacy(about: dict[bytes, bytes], rebased: bool) -> bool:
    """Whether a file may have dates of the Julian calendar."""
    if _SPARK_VERSION not in about:
        return rebased
    version = [int(part) for part in about[_SPARK_VERSION].split(b".")[:2]]
    return version < [3, 1] or any(key in about for key in _LEGACY)
