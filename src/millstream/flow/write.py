"""``ms.write``: the sinks of a workflow.

Each function returns a description for ``stream.sink(name, ...)``. File sinks are exactly-once; the
others see the number of each epoch, and may see an epoch again after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.flow.paths import PathLike, path_text
from millstream.flow.sinks import (
    CallbackSink,
    ConsoleSink,
    CsvSink,
    ForeachBatchSink,
    JsonSink,
    ParquetSink,
)


def parquet(path: PathLike) -> ParquetSink:
    """Write Parquet files, exactly once, into ``path/epoch=…``.

    >>> flow = ms.Workflow("copy")
    >>> flow.source("lines", ms.read.text("books/")).sink("copy", ms.write.parquet("copy/"))
    """
    return ParquetSink(path=path_text(path))


def json(path: PathLike) -> JsonSink:
    """Write JSON lines, exactly once, into ``path/epoch=…``.

    >>> sink = ms.write.json("out/alerts")
    """
    return JsonSink(path=path_text(path))


def csv(path: PathLike, *, header: bool = True) -> CsvSink:
    """Write CSV files, exactly once, into ``path/epoch=…``.

    >>> sink = ms.write.csv("out/report", header=False)
    """
    return CsvSink(path=path_text(path), header=header)


def console(*, rows: int = 20) -> ConsoleSink:
    """Print the first ``rows`` rows of every epoch.

    All output of an epoch is collected in the driver: for small results.

    >>> sink = ms.write.console(rows=5)
    """
    return ConsoleSink(rows=rows)


def callback(function: Callable[[list[Any], int], object]) -> CallbackSink:
    """Call ``function(rows, epoch)`` in the driver, with the rows as a list of Spark ``Row``.

    >>> sink = ms.write.callback(lambda rows, epoch: print(epoch, len(rows)))
    """
    return CallbackSink(function=function)


def foreach_batch(function: Callable[[Any, int], object]) -> ForeachBatchSink:
    """Call ``function(frame, epoch)`` in the driver, with the output as a Spark DataFrame.

    >>> def to_table(frame, epoch):
    ...     frame.write.mode("append").saveAsTable("counts")
    >>> sink = ms.write.foreach_batch(to_table)
    """
    return ForeachBatchSink(function=function)
