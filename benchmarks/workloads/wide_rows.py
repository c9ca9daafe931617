"""Wide rows: of 50 columns, 48 numbers are added up by key and window."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms
from benchmarks.workloads.workload import Random, Tables, Workload, times

NUMBERS = tuple(f"v{number:02}" for number in range(48))
KEYS = 1_000
SIZE = timedelta(seconds=10)


def readings(random: Random, epoch: int, rows: int) -> Tables:
    """Numbers of machines, as wholes, so that their sums are exact in any order."""
    columns = {
        "id": random.integers(0, KEYS, rows),
        **{name: random.integers(0, 1_000_000, rows) for name in NUMBERS},
    }
    return {"readings": pa.table({**columns, "ts": times(random, epoch, rows)})}


def on_millstream(streams: Mapping[str, ms.Stream]) -> ms.Stream:
    by_machine = streams["readings"].key_by("id").window(ms.tumbling(SIZE), time="ts")
    return by_machine.aggregate("wide", **{name: ms.sum(name) for name in NUMBERS})


def on_spark(frames: Mapping[str, DataFrame]) -> DataFrame:
    window = F.window("ts", f"{SIZE // timedelta(seconds=1)} seconds").alias("window")
    by_machine = frames["readings"].groupBy(window, F.col("id").alias("key"))
    sums = by_machine.agg(*(F.sum(name).alias(name) for name in NUMBERS))
    return sums.select("key", *NUMBERS, F.col("window.end").alias("window_end"))


_SUMS = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in NUMBERS)

WIDE_ROWS = Workload(
    name="wide_rows",
    title="Rows of 50 columns",
    generate=readings,
    answer=pa.schema(
        [
            ("key", pa.int64()),
            *((name, pa.int64()) for name in NUMBERS),
            ("window_end", pa.timestamp("us")),
        ]
    ),
    millstream=on_millstream,
    spark=on_spark,
    duckdb=f"""
        SELECT id AS key, {_SUMS},
            time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS window_end
        FROM readings GROUP BY ALL""",
    flink=f"""
        SELECT id, {_SUMS}, window_end
        FROM TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10' SECOND)
        GROUP BY id, window_start, window_end""",
)
