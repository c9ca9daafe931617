"""Compaction of a file sink: the files of each epoch become one, in the same folder.

Many small files are merged before they are published, invisibly. What is published is compacted on
demand: the new file is written to a hidden folder, and then the two folders are exchanged
atomically. A reader that lists the folder sees an epoch's old files or its new one, never both and
never neither; one that has listed the old files and not yet opened them gets an error. No plain
folder can do better: a path that can still be opened is also listed. The old files are deleted a
second later: a reader that is just listing their folder would miss those already gone. A sink has
a folder for every epoch with rows, because readers derive the column ``epoch`` from its name; so
epochs can be withdrawn after a compaction as before it.

It works on committed epochs, during a run or after it, and needs neither Spark nor a JVM::

    <path>/_millstream/compacting/epoch=…      the new folder; after the exchange, the old one
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.coordinator.sink_layout import (
    EPOCHS,
    EPOCHS_PATIENCE,
    OURS,
    epoch_folder,
    epochs_in,
    locked,
)
from millstream.errors import ConfigError, MillstreamError

Merge = Callable[[Sequence[Path], Path], None]
MANY = 16  # files of an epoch
SMALL = 1 << 17  # bytes of a file, on average
_COMPACTION = "compaction"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_COPY = 1 << 20
_GRACE = 1.0  # seconds
_ROW_GROUP = 1 << 26
_ARROW_SCHEMA = b"ARROW:schema"
_PLAIN_TEXT = (".json", ".csv")


class CompactionUnsupportedError(MillstreamError):
    """A sink cannot be compacted without its readers noticing."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path} cannot be compacted: {self.why}; nothing of it was changed"


@dataclass(frozen=True)
class Compacted:
    """What a compaction has done: epochs that have one file now, and how many they had."""

    epochs: int
    files: int


def compact(path: str, *, older_than: timedelta = timedelta()) -> Compacted:
    """Merge the files of each epoch that was last written so long ago."""
    sink = Path(path)
    merge = _merge_of(sink)
    done = files = 0
    replaced: deque[tuple[float, Path]] = deque()
    with locked(sink, _COMPACTION):
        aside = sink / OURS / "compacting"
        shutil.rmtree(aside, ignore_errors=True)  # what a crash has left
        aside.mkdir()
        try:
            for epoch in epochs_in(os.listdir(sink)):
                found = _compact_epoch(sink / epoch_folder(epoch), aside, merge, older_than)
                if found:
                    done, files = done + 1, files + found
                    replaced.append((time.monotonic(), aside / epoch_folder(epoch)))
                while replaced and time.monotonic() - replaced[0][0] > _GRACE:
                    shutil.rmtree(replaced.popleft()[1])
        finally:
            if replaced:
                time.sleep(max(0.0, replaced[-1][0] + _GRACE - time.monotonic()))
            shutil.rmtree(aside)
    return Compacted(done, files)


def merge_staged(sink: Path, staged: Path) -> None:
    """Merge the files of an epoch that is not published yet, if they are many and small."""
    before = _data_files(staged)
    if len(before) <= MANY or sum(file.stat().st_size for file in before) > len(before) * SMALL:
        return
    merged = _merged(before, staged)
    try:
        _merge_of(sink)(before, merged)
    except CompactionUnsupportedError:
        merged.unlink(missing_ok=True)
        return
    for file in before:
        file.unlink()


def _merge_of(sink: Path) -> Merge:
    """How the files of a sink are merged."""
    try:
        names = os.listdir(sink / OURS)
    except OSError:
        raise ConfigError(
            f"{sink} is not the folder of a file sink on a local or mounted file system"
        ) from None
    match sorted(name for name in names if name.startswith(("format=", "header="))):
        case ["format=parquet"]:
            return merge_parquet
        case ["format=json"]:
            return partial(merge_lines, headers=0)
        case ["format=csv", "header=true"]:
            return partial(merge_lines, headers=1)
        case ["format=csv", "header=false"]:
            return partial(merge_lines, headers=0)
    raise CompactionUnsupportedError(str(sink), "its format is not known")


def _compact_epoch(folder: Path, aside: Path, merge: Merge, older_than: timedelta) -> int:
    """The number of files that have become one."""
    before = _data_files(folder)
    if len(before) < 2:
        return 0
    written = max(file.stat().st_mtime for file in before)
    if time.time() - written < older_than.total_seconds():
        return 0
    new = aside / folder.name
    new.mkdir()
    merged = _merged(before, new)
    merge(before, merged)
    # As old as the youngest of the old ones: streams that read the folder go by age.
    os.utime(merged, (written, written))
    _sync(merged)
    _sync(new)
    with locked(folder.parent, EPOCHS, wait=EPOCHS_PATIENCE):
        # File names are unique, so these are the files that were read: the epoch was not withdrawn
        # meanwhile, and perhaps published again.
        if _data_files(folder) == before:
            _exchange(new, folder)
        else:
            before = []
    _sync(folder.parent)
    if not before:
        shutil.rmtree(new)
    return len(before)


def _merged(files: Sequence[Path], folder: Path) -> Path:
    return folder / files[0].name.replace("part-", "part-compacted-", 1)


def _data_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.name[0] not in "._")
    except FileNotFoundError:
        return []


def merge_parquet(files: Sequence[Path], merged: Path) -> None:
    """Copy row groups into one file that has the same columns, types and metadata."""
    with pq.ParquetFile(files[0], coerce_int96_timestamp_unit="us") as first:
        schema, original, about = first.schema_arrow, first.schema, first.metadata
    pairs = about.metadata or {}
    columns = [original.column(at) for at in range(len(original))]
    integers = ("INT32", "INT64")
    options: dict[str, Any] = {}
    if any(c.logical_type.type == "DECIMAL" and c.physical_type in integers for c in columns):
        options["store_decimal_as_integer"] = True
    codec = about.row_group(0).column(0).compression if about.num_row_groups else "SNAPPY"
    with pq.ParquetWriter(
        merged,
        schema,
        compression=codec,
        use_deprecated_int96_timestamps=any(c.physical_type == "INT96" for c in columns),
        store_schema=_ARROW_SCHEMA in pairs,
        **options,
    ) as writer:
        if _ARROW_SCHEMA not in pairs:  # else they are a part of the schema
            writer.add_key_value_metadata(pairs)
        for table in _tables(files, original):
            writer.write_table(table)
    with pq.ParquetFile(merged) as reader:
        _require(merged, reader.schema.equals(original))


def _tables(files: Sequence[Path], original: pq.ParquetSchema) -> Iterator[pa.Table]:
    """The rows of all files, in few tables."""
    buffered: list[pa.Table] = []
    for file in files:
        with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as reader:
            _require(file, reader.schema.equals(original))
            for group in range(reader.num_row_groups):
                buffered.append(reader.read_row_group(group))
                if sum(table.nbytes for table in buffered) > _ROW_GROUP:
                    yield pa.concat_tables(buffered)
                    buffered.clear()
    if buffered:
        yield pa.concat_tables(buffered)


def _require(file: Path, same: bool) -> None:
    if not same:
        raise CompactionUnsupportedError(
            str(file.parent), "its files differ in types, or compaction would change them"
        )


def merge_lines(files: Sequence[Path], merged: Path, *, headers: int) -> None:
    """Write the lines of all files into one; of lines that are headers, those of the first."""
    expected = b""
    with merged.open("wb") as target:
        for at, file in enumerate(files):
            _require(file, file.suffix in _PLAIN_TEXT)
            with file.open("rb") as source:
                header = b"".join(source.readline() for _ in range(headers))
                if not at:
                    expected = header
                    target.write(header)
                # A name with a line feed is in quotes, which that line does not close.
                _require(file, header == expected and header.count(b'"') % 2 == 0)
                shutil.copyfileobj(source, target, _COPY)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change places, in one step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    problem = errno.ENOSYS
    if rename is not None:
        paths = os.fsencode(one), os.fsencode(other)
        if not rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
            return
        problem = ctypes.get_errno()
    if problem in (errno.ENOSYS, errno.EINVAL):
        raise CompactionUnsupportedError(
            str(other.parent), "the file system cannot exchange two folders in one step"
        )
    raise OSError(problem, os.strerror(problem), str(other))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
