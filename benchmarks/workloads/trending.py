"""Top-k trending: the ten most frequent topics of a minute, every ten seconds.

Of topics that are equally frequent, those with the smaller number come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms
from benchmarks.workloads.workload import Random, Tables, Workload, times

TOP = 10
TOPICS = 10_000
EXPONENT = 1.1
SIZE, SLIDE = timedelta(seconds=60), timedelta(seconds=10)
_BITS = 32  # of a topic's number, where it is the lower half of a rank
_MASK = (1 << _BITS) - 1


def mentions(random: Random, epoch: int, rows: int) -> Tables:
    """Topics by Zipf's law; every epoch has others that are frequent."""
    sums = np.cumsum(np.arange(1, TOPICS + 1, dtype=float) ** -EXPONENT)
    ranks = np.searchsorted(sums, random.random(rows) * sums[-1], side="right")
    topics = (np.minimum(ranks, TOPICS - 1) + 7 * epoch) % TOPICS
    return {"mentions": pa.table({"topic": topics, "ts": times(random, epoch, rows)})}


def on_millstream(streams: Mapping[str, ms.Stream]) -> ms.Stream:
    by_topic = streams["mentions"].key_by("topic").window(ms.sliding(SIZE, SLIDE), time="ts")
    counts = by_topic.reduce("counts", ms.count())
    top = counts.map_reduce(
        "trending", map=ms.arrow(_ranked), reduce=ms.top_k(TOP), window=ms.tumbling(SLIDE)
    )
    return top.map(ms.arrow(_places))


def _ranked(counts: pa.RecordBatch) -> pa.RecordBatch:
    """All under one key, as numbers in the order of count and topic."""
    count, topic = counts.column("value"), counts.column("key")
    ranks = pc.bit_wise_or(pc.shift_left(count, _BITS), pc.subtract(_MASK, topic))
    zeros = pa.array(np.zeros(len(ranks), np.int64))
    return pa.RecordBatch.from_arrays([zeros, ranks], names=["key", "value"])


def _places(tops: pa.RecordBatch) -> pa.RecordBatch:
    ranks = tops.column("value")
    found = pc.list_flatten(ranks)
    ends = tops.column("window_end").take(pc.list_parent_indices(ranks))
    topics = pc.subtract(_MASK, pc.bit_wise_and(found, _MASK))
    return pa.RecordBatch.from_arrays(
        [topics, pc.shift_right(found, _BITS), ends], names=["topic", "n", "window_end"]
    )


def on_spark(frames: Mapping[str, DataFrame]) -> DataFrame:
    size, slide = (f"{each // timedelta(seconds=1)} seconds" for each in (SIZE, SLIDE))
    window = F.window("ts", size, slide).alias("window")
    counts = frames["mentions"].groupBy(window, "topic").agg(F.count("*").alias("n"))
    ranked = F.struct((-F.col("n")).alias("less"), "topic")
    top = counts.groupBy("window").agg(F.sort_array(F.collect_list(ranked)).alias("all"))
    places = top.select(F.explode(F.slice("all", 1, TOP)).alias("place"), "window")
    return places.selectExpr("place.topic", "-place.less AS n", "window.end AS window_end")


_DUCKDB = f"""
    WITH counts AS (
        SELECT topic, time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND * (n + 1)
            AS window_end, count(*) AS n
        FROM mentions, range({SIZE // SLIDE}) AS later(n) GROUP BY ALL)
    SELECT topic, n, window_end FROM counts
    QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC, topic) <= {TOP}"""
_FLINK = f"""
    SELECT topic, n, window_end FROM (
        SELECT *, ROW_NUMBER() OVER (
            PARTITION BY window_start, window_end ORDER BY n DESC, topic) AS place
        FROM (
            SELECT topic, count(*) AS n, window_start, window_end
            FROM HOP(TABLE mentions, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '60' SECOND)
            GROUP BY topic, window_start, window_end))
    WHERE place <= {TOP}"""

TRENDING = Workload(
    name="trending",
    title="Top ten of trending topics",
    generate=mentions,
    answer=pa.schema(
        [("topic", pa.int64()), ("n", pa.int64()), ("window_end", pa.timestamp("us"))]
    ),
    millstream=on_millstream,
    spark=on_spark,
    duckdb=_DUCKDB,
    flink=_FLINK,
)
