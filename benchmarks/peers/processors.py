"""One stateful processor in both forms, run by Spark and by Millstream.

It keeps a count and a sum for each key, and yields a row for each call. Rows go to ``noop``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millstream as ms
from benchmarks.harness import PARTITIONS

NODES = 2
FILES_PER_EPOCH = 2
SCHEMA = "id string, v bigint"
OUTPUT = "id string, n bigint, total bigint"

Totals = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Input:
    """A folder of rows; every epoch has one row of each key."""

    folder: Path
    keys: int
    epochs: int

    def totals(self) -> Totals:
        """The right answer."""
        return {
            f"k{n}": (self.epochs, sum(n + epoch for epoch in range(self.epochs)))
            for n in range(self.keys)
        }


def write_input(folder: Path, *, keys: int, epochs: int) -> Input:
    """Write the rows, in another order in each epoch."""
    folder.mkdir()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(keys)
        for part, numbers in enumerate(np.array_split(order, FILES_PER_EPOCH)):
            ids = pa.array([f"k{n}" for n in numbers.tolist()])
            table = pa.table({"id": ids, "v": pa.array(numbers + epoch)})
            pq.write_table(table, folder / f"{epoch:03d}-{part}.parquet")
    return Input(folder, keys, epochs)


def require_protobuf() -> None:
    """Say at once what would otherwise fail inside Spark, minutes later."""
    try:
        import_module("google.protobuf")
    except ImportError:
        wanted = "pip install 'protobuf>=6.33.5,<7'"
        raise SystemExit(f"transformWithStateInPandas needs protobuf: {wanted}") from None


def _row_processor() -> Any:
    # Made inside a function so that it is pickled by value: workers need not import this module.
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._known = handle.getValueState("known", "n bigint, total bigint")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            n, total = self._known.get() or (0, 0)
            for row in rows:
                n, total = n + 1, total + row.v
            self._known.update((n, total))
            yield Row(id=key[0], n=n, total=total)

        def close(self) -> None:
            pass

    return Totals()


def _pandas_processor() -> Any:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._known = handle.getValueState("known", "n bigint, total bigint")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            n, total = self._known.get() or (0, 0)
            for frame in rows:
                n, total = n + len(frame), total + int(frame["v"].sum())
            self._known.update((n, total))
            yield pd.DataFrame({"id": [key[0]], "n": [n], "total": [total]})

        def close(self) -> None:
            pass

    return Totals()


def processor(*, in_pandas: bool) -> Any:
    """The processor, in one of its forms."""
    return _pandas_processor() if in_pandas else _row_processor()


def on_spark(
    spark: SparkSession, given: Input, work: Path, *, in_pandas: bool
) -> tuple[list[float], Totals]:
    """The trigger times of Spark's own, in milliseconds, and the totals."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH)
    grouped = reader.parquet(str(given.folder)).groupBy("id")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    out = transform(
        statefulProcessor=processor(in_pandas=in_pandas),
        outputStructType=OUTPUT,
        outputMode="Update",
        timeMode="None",
    )
    query = (
        out.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(work))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    state = spark.read.format("statestore").option("stateVarName", "known").load(str(work))
    rows = state.selectExpr("key.id", "value.n", "value.total").collect()
    return _triggers(query, given), {row[0]: (row[1], row[2]) for row in rows}


def on_millstream(
    spark: SparkSession, given: Input, work: Path, *, in_pandas: bool
) -> tuple[list[float], Totals]:
    """The trigger times of Millstream, in milliseconds, and the totals."""
    flow = ms.Workflow("processors")
    source = ms.read.parquet(given.folder, schema=SCHEMA, max_files_per_epoch=FILES_PER_EPOCH)
    rows = flow.source("rows", source)
    reducer = ms.transform_with_state(
        processor(in_pandas=in_pandas), output=OUTPUT, in_pandas=in_pandas
    )
    rows.key_by("id").reduce("totals", reducer).sink("out", ms.write.foreach_batch(_discard))
    with ms.start(
        flow, spark=spark, checkpoint=work, nodes=NODES, partitions=PARTITIONS, progress=False
    ) as run:
        query = next(q for q in spark.streams.active if q.name.startswith("processors-"))
        run.await_termination()
        totals = {
            key: (known["known.n"], known["known.total"])
            for key, known in run.state("totals").items()
        }
        return _triggers(query, given), totals


def _discard(frame: DataFrame, epoch: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _triggers(query: StreamingQuery, given: Input) -> list[float]:
    times = [
        float(progress.durationMs["triggerExecution"])
        for progress in query.recentProgress
        if progress.numInputRows > 0
    ]
    if len(times) != given.epochs:
        raise RuntimeError(f"expected {given.epochs} epochs, Spark reports {len(times)}")
    return times
