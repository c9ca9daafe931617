"""Where a workflow writes: frozen descriptions of sinks, checked when they are made.

Nothing is opened here and Spark is not imported: ``millstream.spark.sinks`` opens a sink when
the workflow starts, and owns what exactly-once means for each kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.flow.functions import caller, check_arguments, check_callable


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
    """Hands the rows of an epoch to a function in the driver."""

    function: Callable[[list[Any], int], object]

    def __post_init__(self) -> None:
        _check_function("callback", self.function, "(rows, epoch)")


@dataclass(frozen=True, kw_only=True)
class ForeachBatchSink(Sink):
    """Hands the DataFrame of an epoch to a function in the driver."""

    function: Callable[[Any, int], object]

    def __post_init__(self) -> None:
        _check_function("foreach_batch", self.function, "(frame, epoch)")


@dataclass(frozen=True, kw_only=True)
class FileSink(Sink):
    """The base of sinks that write one folder per epoch, visible as a whole or not at all."""

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ConfigError(f"path must be a non-empty string or path, got {self.path!r}")


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


def console(*, rows: int = 20) -> ConsoleSink:
    """Print the first ``rows`` rows of every epoch.

    All output of an epoch is collected in the driver: for looking at small results.
    """
    return ConsoleSink(rows=rows)


def callback(f: Callable[[list[Any], int], object]) -> CallbackSink:
    """Call ``f(rows, epoch)`` in the driver, with the epoch's rows as a list of Spark ``Row``.

    After a failure an epoch may be handed over a second time; use its number to tell.
    """
    return CallbackSink(function=f)


def foreach_batch(f: Callable[[Any, int], object]) -> ForeachBatchSink:
    """Call ``f(frame, epoch)`` in the driver, with the epoch's output as a Spark DataFrame.

    After a failure an epoch may be handed over a second time; use its number to tell.
    """
    return ForeachBatchSink(function=f)


def parquet(path: str | os.PathLike[str]) -> ParquetSink:
    """Write Parquet files, exactly once, into ``path/epoch=…``."""
    return ParquetSink(path=_path_text(path))


def json(path: str | os.PathLike[str]) -> JsonSink:
    """Write JSON lines, exactly once, into ``path/epoch=…``."""
    return JsonSink(path=_path_text(path))


def csv(path: str | os.PathLike[str], *, header: bool = True) -> CsvSink:
    """Write CSV files, exactly once, into ``path/epoch=…``."""
    return CsvSink(path=_path_text(path), header=header)


def _check_function(sink: str, f: Callable[..., object], shape: str) -> None:
    check_callable(f, f"{sink}()", caller())
    check_arguments(f, 2, f"function of {sink}()", shape)


def _path_text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if isinstance(path, os.PathLike) else path
