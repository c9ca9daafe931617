"""The files that the map tasks of an epoch read by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from millstream.work.scans.parquet import read_rows
from millstream.work.scans.text import read_lines

Format = Literal["text", "parquet"]
ROWS = 50_000  # of a batch, as many as Spark would send


@dataclass(frozen=True)
class Split:
    """A part of a file, with the values of its partition columns."""

    path: str
    start: int
    length: int
    partition: pa.RecordBatch | None = None


@dataclass(frozen=True)
class ScanTask:
    """What one map task reads of a source: rows of ``schema``, from files of one format."""

    source: int
    format: Format
    schema: pa.Schema
    splits: tuple[Split, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the files."""
        for split in self.splits:
            for rows in self._rows(split):
                yield pa.RecordBatch.from_arrays(
                    [_column(field, rows, split.partition) for field in self.schema],
                    schema=self.schema,
                )

    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        taken = () if split.partition is None else split.partition.schema.names
        names = [name for name in self.schema.names if name not in taken]
        if self.format == "parquet":
            yield from read_rows(split.path, split.start, split.length, names, ROWS)
            return
        for lines in read_lines(split.path, split.start, split.length):
            for start in range(0, len(lines), ROWS):
                yield pa.RecordBatch.from_arrays([lines.slice(start, ROWS)], names=names)


def _column(field: pa.Field, rows: pa.RecordBatch, partition: pa.RecordBatch | None) -> pa.Array:
    if partition is not None and field.name in partition.schema.names:
        return pa.repeat(partition.column(field.name)[0], rows.num_rows)
    column = rows.column(field.name)
    return column if column.type == field.type else column.cast(field.type)
