"""Frozen descriptions of sinks, validated when they are made.

Users make them with the functions of ``write.py``. Nothing is opened here and Spark is not
imported: ``millstream.spark.sink_writers`` opens a sink when the workflow starts, and owns what
exactly-once means for each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.flow.functions import caller, check_arguments, check_callable
from millstream.flow.paths import check_path


@dataclass(frozen=True, kw_only=True)
class Sink:
    """The base of all sinks."""


@dataclass(frozen=True, kw_only=True)
class ConsoleSink(Sink):
    """Prints the first rows of every epoch."""

    rows: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1:
            raise ConfigError(f"rows must be a whole number of at least 1, got {self.rows!r}")


@dataclass(frozen=True, kw_only=True)
class CallbackSink(Sink):
    """Calls a function in the driver with the rows of an epoch."""

    function: Callable[[list[Any], int], object]

    def __post_init__(self) -> None:
        _check_function("callback", self.function, "(rows, epoch)")


@dataclass(frozen=True, kw_only=True)
class ForeachBatchSink(Sink):
    """Calls a function in the driver with the DataFrame of an epoch."""

    function: Callable[[Any, int], object]

    def __post_init__(self) -> None:
        _check_function("foreach_batch", self.function, "(frame, epoch)")


@dataclass(frozen=True, kw_only=True)
class FileSink(Sink):
    """The base of sinks that write one folder per epoch, visible as a whole or not at all."""

    path: str

    def __post_init__(self) -> None:
        check_path(self.path)


@dataclass(frozen=True, kw_only=True)
class ParquetSink(FileSink):
    """Writes Parquet files."""


@dataclass(frozen=True, kw_only=True)
class JsonSink(FileSink):
    """Writes JSON lines."""


@dataclass(frozen=True, kw_only=True)
class CsvSink(FileSink):
    """Writes CSV files."""

    header: bool = True


def _check_function(sink: str, f: Callable[..., object], shape: str) -> None:
    check_callable(f, f"{sink}()", caller())
    check_arguments(f, 2, f"function of {sink}()", shape)
