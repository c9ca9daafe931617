"""The splits of files that Spark has planned for a scan, read from the JVM."""

from __future__ import annotations

import posixpath
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from millstream.work.scans.scan import Split

_FILE = re.compile(r"path: (\S+), range: (\d+)-(\d+), partition values: \[empty row\]")
_STORED = (
    (pa.types.is_int32, "getInt", pa.int32()),
    (pa.types.is_date32, "getInt", pa.int32()),
    (pa.types.is_int64, "getLong", pa.int64()),
    (pa.types.is_timestamp, "getLong", pa.int64()),
    (pa.types.is_float64, "getDouble", pa.float64()),
    (pa.types.is_string, "getString", pa.string()),
)


class LeftToSparkError(Exception):
    """Spark's readers have to read an epoch; the text says why."""


class PlannedFiles:
    """The files of one scan, by task; ``partition`` has the columns that folders give."""

    def __init__(self, jvm: Any, scan: Any, partition: pa.Schema) -> None:
        self._texts = getattr(jvm, "scala.runtime.ScalaRunTime")
        self._tasks = scan.inputRDD().filePartitions()
        self._partition = partition
        self._folders: dict[str, pa.RecordBatch] = {}

    def splits(self) -> list[tuple[Split, ...]]:
        """The splits of each task."""
        found = [self._tasks.apply(at).files() for at in range(self._tasks.size())]
        return [tuple(self._of_task(files)) for files in found]

    def _of_task(self, files: Any) -> list[Split]:
        if self._partition.names:
            return [self._of_file(file) for file in files]
        # One call for all of them: an epoch may have thousands. Paths are URLs, without spaces.
        text = self._texts.stringOf(files)
        found = [
            Split(_local(url), int(start), int(end) - int(start))
            for url, start, end in _FILE.findall(text)
        ]
        if len(found) != len(files):
            raise LeftToSparkError("it lists files in another form")
        return found

    def _of_file(self, file: Any) -> Split:
        url = file.urlEncodedPath()
        folder = posixpath.dirname(url)
        if folder not in self._folders:
            row = file.partitionValues()
            columns = [_value(row, at, field.type) for at, field in enumerate(self._partition)]
            self._folders[folder] = pa.RecordBatch.from_arrays(columns, schema=self._partition)
        return Split(_local(url), file.start(), file.length(), self._folders[folder])


def _local(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc:
        raise LeftToSparkError(f"files on {parts.scheme}://{parts.netloc}")
    return unquote(parts.path)


def _value(row: Any, at: int, kind: pa.DataType) -> pa.Array:
    """One value of Spark's internal row, as an array."""
    for holds, getter, stored in _STORED:
        if holds(kind):
            value = None if row.isNullAt(at) else getattr(row, getter)(at)
            return pa.array([value], stored).cast(kind)
    raise LeftToSparkError(f"folders give a column of type {kind}")
