"""ShuffleBench's task: records are matched with the rules of consumers, who count what they get.

As in its defaults, one record in five has a consumer. Rules are a table that engines know from the
start: one of topics here, where ShuffleBench leaves it open. Consumers count the records, and add
up their sizes, in windows, where ShuffleBench has them count for ever: so all give the same rows.
Flink is left out: a join with a table of rules takes the event time from a stream in its SQL,
unless the table is in a system of its own that is asked for every record.
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

TOPICS = 100_000
CONSUMERS = 10_000
MATCHING = 0.2  # of the topics
SIZE = timedelta(seconds=10)
_PAYLOAD = 100  # characters at most


def records(random: Random, epoch: int, rows: int) -> Tables:
    """Records of topics that are equally frequent, with some text."""
    texts = pa.array(["x" * length for length in range(1, _PAYLOAD + 1)])
    columns = {
        "topic": random.integers(0, TOPICS, rows),
        "payload": texts.take(pa.array(random.integers(0, _PAYLOAD, rows))),
    }
    return {"records": pa.table({**columns, "ts": times(random, epoch, rows)})}


def rules() -> pa.Table:
    """The consumers of topics; most topics have none."""
    random = np.random.default_rng(1)
    topics = random.choice(TOPICS, int(MATCHING * TOPICS), replace=False)
    consumers = random.integers(0, CONSUMERS, len(topics))
    return pa.table({"topic": np.sort(topics), "consumer": consumers})


RULES = rules()


def on_millstream(streams: Mapping[str, ms.Stream]) -> ms.Stream:
    topics, consumers = RULES["topic"].combine_chunks(), RULES["consumer"].combine_chunks()

    def match(batch: pa.RecordBatch) -> pa.RecordBatch:
        rule = pc.index_in(batch.column("topic"), value_set=topics)
        matched = pc.is_valid(rule)
        found = pa.RecordBatch.from_arrays(
            [
                consumers.take(rule.drop_null()),
                pc.utf8_length(batch.column("payload").filter(matched)).cast(pa.int64()),
                batch.column("ts").filter(matched),
            ],
            names=["key", "size", "ts"],
        )
        return found

    return streams["records"].map_reduce(
        "matching",
        map=ms.arrow(match),
        reduce=ms.aggregate(n=ms.count(), size=ms.sum("size")),
        window=ms.tumbling(SIZE),
        time="ts",
    )


def on_spark(frames: Mapping[str, DataFrame]) -> DataFrame:
    stream = frames["records"]
    matches = stream.join(F.broadcast(stream.sparkSession.createDataFrame(RULES)), "topic")
    window = F.window("ts", f"{SIZE // timedelta(seconds=1)} seconds").alias("window")
    totals = matches.groupBy(window, F.col("consumer").alias("key")).agg(
        F.count("*").alias("n"), F.sum(F.length("payload")).alias("size")
    )
    return totals.select("key", "n", "size", F.col("window.end").alias("window_end"))


_DUCKDB = """
    SELECT consumer AS key, count(*) AS n, sum(length(payload))::BIGINT AS size,
        time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS window_end
    FROM records JOIN rules USING (topic)
    GROUP BY ALL"""

MATCHES = Workload(
    name="matching",
    title="Matching of records with consumers (ShuffleBench)",
    generate=records,
    answer=pa.schema(
        [
            ("key", pa.int64()),
            ("n", pa.int64()),
            ("size", pa.int64()),
            ("window_end", pa.timestamp("us")),
        ]
    ),
    millstream=on_millstream,
    spark=on_spark,
    duckdb=_DUCKDB,
    fixed={"rules": RULES},
)
