"""The state of a job of a running workflow, as its user reads it: keys, scans, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.tables import table_of
from millstream.coordinator.state_reader import StateReader
from millstream.coordinator.state_scan import Scan
from millstream.errors import ConfigError
from millstream.wire.scan_filters import KeyRange, Largest


class States(Mapping[Any, Any]):
    """The states of keys at one committed ``epoch``; keys without state are not in it."""

    def __init__(self, epoch: int, found: Mapping[Any, Any]) -> None:
        self.epoch = epoch
        self._found = found

    def __getitem__(self, key: Any) -> Any:
        return self._found[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"States(epoch={self.epoch}, {dict(self._found)!r})"


class JobState:
    """The committed state of one job. A read is of one committed epoch, and never blocks reduce."""

    def __init__(self, reader: StateReader, job: int, spark: SparkSession) -> None:
        self._reader = reader
        self._job = job
        self._spark = spark

    def get(self, key: object, default: Any = None) -> Any:
        """The state of a key: its entries, or the result of a combinable reducer."""
        found = self._reader.get(self._job, key)
        return default if found is None else found

    def get_many(self, keys: Sequence[object]) -> States:
        """The states of keys at one epoch, with one call per node: far faster than one by one."""
        if isinstance(keys, str | bytes):
            raise ConfigError(f"keys must be a list of keys, got {keys!r}; or use get")
        read = self._reader.get_many(self._job, keys)
        pairs = zip(keys, read.values, strict=True)
        return States(read.epoch, {key: value for key, value in pairs if value is not None})

    def items(self) -> Scan:
        """All keys with their state, as of one committed epoch: the scan's ``epoch``."""
        return self._reader.items(self._job)

    def scan(
        self, *, prefix: str | bytes | None = None, start: object = None, stop: object = None
    ) -> Scan:
        """The keys with a prefix, or from ``start`` to before ``stop``, in no order."""
        return self._reader.items(self._job, KeyRange(prefix, start, stop))

    def top(self, n: int, *, by: str | Callable[[Any], Any] | None = None) -> list[tuple[Any, Any]]:
        """The keys with the largest values, largest first.

        ``by`` is the name of an entry, or a function of the value; values of a single number, or
        with a single entry, need none.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigError(f"n must be a whole number of at least 1, got {n!r}")
        if callable(by):
            rank = by
            return nlargest(n, self.items(), key=lambda item: rank(item[1]))
        largest = Largest(n, by)
        return largest.select(self._reader.items(self._job, largest))

    def to_arrow(self) -> pa.Table:
        """All keys with their state as a table, in the memory of the driver.

        Columns are ``key`` and one for each entry, or ``value``. The epoch is in the metadata of
        the schema, as ``millstream.epoch``.
        """
        scan = self.items()
        table = table_of(scan)
        return table.replace_schema_metadata({"millstream.epoch": str(scan.epoch)})

    def to_dataframe(self) -> DataFrame:
        """All keys with their state as a DataFrame of Spark, through the memory of the driver."""
        return self._spark.createDataFrame(self.to_arrow())
