"""Sessionisation: clicks of users, with a gap that ends a session.

Engines differ in whether clicks that are just a gap apart are of one session. The gap is an odd
number of milliseconds, and the times are even ones, so that none are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import millstream as ms
from benchmarks.workloads.workload import Random, Tables, Workload, times

GAP = timedelta(milliseconds=3_999)
_CLICKS_EACH = 5  # of a user in an epoch


def clicks(random: Random, epoch: int, rows: int) -> Tables:
    """Clicks of users who are all equally active."""
    users = random.integers(0, max(1, rows // _CLICKS_EACH), rows)
    columns = {"id": users, "amount": random.integers(1, 1_000, rows)}
    return {"clicks": pa.table({**columns, "ts": times(random, epoch, rows)})}


def on_millstream(streams: Mapping[str, ms.Stream]) -> ms.Stream:
    by_user = streams["clicks"].key_by("id").window(ms.session(GAP), time="ts")
    return by_user.aggregate("sessions", n=ms.count(), amount=ms.sum("amount"))


def on_spark(frames: Mapping[str, DataFrame]) -> DataFrame:
    sessions = frames["clicks"].groupBy(session_column().alias("session"), F.col("id").alias("key"))
    totals = sessions.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    return totals.select("key", "n", "amount", F.col("session.end").alias("window_end"))


def session_column() -> Column:
    """The sessions in Spark."""
    return F.session_window("ts", f"{_MS} milliseconds")


def sessions_in_duckdb(table: str, key: str, results: str) -> str:
    """The sessions of the rows of a table."""
    return f"""
        WITH marked AS (
            SELECT *, coalesce(
                ts - lag(ts) OVER (PARTITION BY {key} ORDER BY ts) >= INTERVAL {_MS} MILLISECOND,
                true) AS opens
            FROM {table}),
        numbered AS (
            SELECT *, sum(opens::INT) OVER (PARTITION BY {key} ORDER BY ts) AS session FROM marked)
        SELECT {key} AS key, {results}, max(ts) + INTERVAL {_MS} MILLISECOND AS window_end
        FROM numbered GROUP BY {key}, session"""


def sessions_in_flink(table: str, key: str, results: str) -> str:
    """The same in Flink."""
    gap = f"INTERVAL '{_MS / 1000}' SECOND(1, 3)"
    return f"""
        SELECT {key}, {results}, window_end
        FROM SESSION(TABLE {table} PARTITION BY {key}, DESCRIPTOR(ts), {gap})
        GROUP BY {key}, window_start, window_end"""


_MS = GAP // timedelta(milliseconds=1)
_RESULTS = "count(*) AS n, CAST(sum(amount) AS BIGINT) AS amount"

SESSIONS = Workload(
    name="sessions",
    title="Sessions of clicks",
    generate=clicks,
    answer=pa.schema(
        [
            ("key", pa.int64()),
            ("n", pa.int64()),
            ("amount", pa.int64()),
            ("window_end", pa.timestamp("us")),
        ]
    ),
    millstream=on_millstream,
    spark=on_spark,
    duckdb=sessions_in_duckdb("clicks", "id", _RESULTS),
    flink=sessions_in_flink("clicks", "id", _RESULTS),
)
