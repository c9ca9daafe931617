"""What a workload consists of, and the recordings that engines read.

Event times are even milliseconds, in spans of the same length for every epoch, and rows come out of
order by less than the lateness that all engines are told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import millstream as ms

START = datetime(2026, 3, 1, tzinfo=UTC)
SPAN = timedelta(seconds=20)
"""The event time of an epoch."""
LATENESS = timedelta(seconds=2)
FILES_PER_EPOCH = 2
_TICK = timedelta(milliseconds=2)
_MS = timedelta(milliseconds=1)

Ints = npt.NDArray[np.int64]
Random = np.random.Generator
Tables = Mapping[str, pa.Table]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A task on streams of rows, whose event times are in the column ``ts``.

    ``generate`` makes the rows of an epoch, of all tables together so many, in the order of their
    times. ``fixed`` are tables that all engines know from the start. The answer has these columns
    of what an engine gives; if it has windows, those count that the last watermark has passed.
    """

    name: str
    title: str
    generate: Callable[[Random, int, int], Tables]
    answer: pa.Schema
    millstream: Callable[[Mapping[str, ms.Stream]], ms.Stream]
    spark: Callable[[Mapping[str, DataFrame]], DataFrame]
    duckdb: str
    flink: str | None = None
    fixed: Tables | None = None

    @property
    def streams(self) -> Sequence[str]:
        """The names of the tables that are streams."""
        return list(self.generate(np.random.default_rng(0), 0, 16))


def times(random: Random, epoch: int, rows: int) -> pa.Array:
    """So many times of an epoch, ascending, the last at its very end."""
    ticks = np.sort(random.integers(0, SPAN // _TICK, rows))
    ticks[-1] = SPAN // _TICK - 1
    first = (START - datetime.fromtimestamp(0, UTC) + epoch * SPAN) // _MS
    milliseconds = pa.array(first + ticks * (_TICK // _MS))
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def write(workload: Workload, folder: Path, *, epochs: int, rows: int) -> None:
    """Write a recording; one of fewer epochs is a prefix of a longer one.

    Parquet files in a folder for every table, two of them an epoch. Flink reads the files of a
    folder in any order, and Parquet only with Hadoop: it has the same rows as CSV, in two files.
    """
    for name, table in (workload.fixed or {}).items():
        _parquet(table, folder / name / "all.parquet", 0)
    with _CsvFiles(folder / "csv") as for_flink:
        for epoch in range(epochs):
            random = np.random.default_rng([epoch, len(workload.name)])
            for name, table in workload.generate(random, epoch, rows).items():
                arrived = table.take(_arrivals(random, table))
                for part in range(FILES_PER_EPOCH):
                    share = arrived.take(np.arange(part, arrived.num_rows, FILES_PER_EPOCH))
                    _parquet(share, folder / name / f"{epoch:04d}-{part}.parquet", epoch)
                    if workload.flink is not None:
                        for_flink.add(name, part, share)


def _arrivals(random: Random, table: pa.Table) -> Ints:
    """The rows in an order in which none is later than the lateness."""
    at = table["ts"].cast(pa.int64()).to_numpy()
    delays = random.integers(0, LATENESS // timedelta(microseconds=1), table.num_rows)
    return np.argsort(at + delays, kind="stable")


def _parquet(table: pa.Table, file: Path, epoch: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    # Spark admits files in the order of their times.
    written = START.timestamp() - 1_000_000 + epoch
    os.utime(file, (written, written))


class _CsvFiles:
    """Files that grow with every epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], csv.CSVWriter] = {}

    def __enter__(self) -> _CsvFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, table: str, part: int, rows: pa.Table) -> None:
        at = rows["ts"].cast(pa.timestamp("us")).cast(pa.timestamp("ms"))
        rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", at)
        if (table, part) not in self._files:
            folder = self._folder / table
            folder.mkdir(parents=True, exist_ok=True)
            options = csv.WriteOptions(include_header=False)
            file = csv.CSVWriter(folder / f"{part}.csv", rows.schema, write_options=options)
            self._files[table, part] = file
        self._files[table, part].write_table(rows)


# -- answers ---------------------------------------------------------------------------------


def read_answer(workload: Workload, path: Path, epochs: int) -> pa.Table:
    """What an engine gave, as a multiset: in the order of all columns."""
    schema = workload.answer
    files = [str(file) for file in path.rglob("*") if _is_data(file, path)]
    if not files:
        return schema.empty_table()
    if any(file.endswith(".parquet") for file in files):
        read = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        table = ds.dataset(files, format=ds.ParquetFileFormat(read)).to_table(schema.names)
    else:
        table = _read_csv(files, schema)
    columns = [pc.cast(table[field.name], field.type).combine_chunks() for field in schema]
    found = pa.Table.from_arrays(columns, schema=schema)
    if "window_end" in schema.names:
        watermark = pa.scalar(
            (START + epochs * SPAN - _TICK - LATENESS).replace(tzinfo=None), pa.timestamp("us")
        )
        found = found.filter(pc.less_equal(found["window_end"], watermark))
    return found.sort_by([(name, "ascending") for name in schema.names]).combine_chunks()


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden and file.stat().st_size > 0


def _read_csv(files: Sequence[str], schema: pa.Schema) -> pa.Table:
    names = csv.ReadOptions(column_names=schema.names)
    types = csv.ConvertOptions(column_types=schema, strings_can_be_null=False)
    return pa.concat_tables(
        csv.read_csv(file, read_options=names, convert_options=types) for file in files
    )
