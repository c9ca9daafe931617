"""Queries of NEXMark that have a key and a window, over its events.

q3: the auctions of a category by sellers of some states, near in time to their registration. As
    published, the state of the join has no end, which Millstream does not offer.
q5: the auction with most bids in windows that slide; q7: the highest bid of a window. Of equal
    ones, the auction with the largest number counts, so that there is one answer.
q8: the persons who registered and opened auctions in the same window.
q11: the bids of every session of a bidder; see ``sessions.py`` for the gap.
q12: the bids of every bidder in windows. As published, windows are of processing time, which has
    no right answer: here they are of event time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

import millstream as ms
from benchmarks.workloads.nexmark_rows import bids, persons_and_auctions
from benchmarks.workloads.sessions import (
    GAP,
    session_column,
    sessions_in_duckdb,
    sessions_in_flink,
)
from benchmarks.workloads.workload import Workload

WINDOW = timedelta(seconds=10)
SLIDE = timedelta(seconds=2)
CATEGORY = 10
STATES_OF_Q3 = ("OR", "ID", "CA")
_WINDOW, _SLIDE = "10 seconds", "2 seconds"
_INT, _TEXT, _END = pa.int64(), pa.string(), pa.timestamp("us")
_BITS = 32  # of an auction's number, where it is the lower half of a rank

Frames = Mapping[str, DataFrame]
Streams = Mapping[str, ms.Stream]


def _windows(table: str, slide: timedelta, *, columns: str) -> str:
    """DuckDB: a row for every window that a row is in."""
    step = f"INTERVAL {slide // timedelta(seconds=1)} SECOND"
    return f"""
        SELECT {columns}, time_bucket({step}, ts) + {step} + {step} * n AS window_end
        FROM {table}, range({WINDOW // slide}) AS later(n)"""


def _tumbling(table: str) -> str:
    return f"TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '10' SECOND)"


# -- q3 --------------------------------------------------------------------------------------


def q3_on_millstream(streams: Streams) -> ms.Stream:
    persons = streams["persons"].map(ms.arrow(_of_states))
    auctions = streams["auctions"].map(ms.arrow(_of_category))
    return persons.join(
        auctions, "q3", within=WINDOW, key="id", right_key="seller", time="ts", on_match=_opened
    )


def _of_states(persons: pa.RecordBatch) -> pa.RecordBatch:
    return persons.filter(pc.is_in(persons.column("state"), value_set=pa.array(STATES_OF_Q3)))


def _of_category(auctions: pa.RecordBatch) -> pa.RecordBatch:
    return auctions.filter(pc.equal(auctions.column("category"), CATEGORY))


def _opened(seller: int, person: Any, auction: Any) -> dict[str, Any]:
    return {
        "key": seller,
        "name": person.name,
        "state": person.state,
        "auction": auction.auction,
    }


def q3_on_spark(frames: Frames) -> DataFrame:
    persons = frames["persons"].where(f"state IN {STATES_OF_Q3}").alias("person")
    auctions = frames["auctions"].where(f"category = {CATEGORY}").alias("auction")
    matches = persons.join(
        auctions,
        F.expr(
            f"person.id = auction.seller AND auction.ts BETWEEN person.ts - INTERVAL {_WINDOW} "
            f"AND person.ts + INTERVAL {_WINDOW}"
        ),
    )
    return matches.select(F.col("id").alias("key"), "name", "state", "auction")


_Q3 = f"""
    SELECT P.id AS `key`, P.name, P.state, A.auction
    FROM auctions AS A JOIN persons AS P ON A.seller = P.id
    WHERE A.category = {CATEGORY} AND P.state IN {STATES_OF_Q3}
    AND A.ts BETWEEN P.ts - INTERVAL '10' SECOND AND P.ts + INTERVAL '10' SECOND"""

# -- q5 and q7 -------------------------------------------------------------------------------


def q5_on_millstream(streams: Streams) -> ms.Stream:
    by_auction = streams["bids"].key_by("auction").window(ms.sliding(WINDOW, SLIDE), time="ts")
    counts = by_auction.reduce("counts", ms.count())
    ranks = ms.arrow(lambda batch: _ranked(batch.column("value"), batch.column("key")))
    hottest = counts.map_reduce("q5", map=ranks, reduce=ms.max(), window=ms.tumbling(SLIDE))
    return hottest.map(ms.arrow(lambda batch: _unranked(batch, "n")))


def q7_on_millstream(streams: Streams) -> ms.Stream:
    def ranks(batch: pa.RecordBatch) -> pa.RecordBatch:
        ranked = _ranked(batch.column("price"), batch.column("auction"))
        return ranked.append_column("ts", batch.column("ts"))

    highest = streams["bids"].map_reduce(
        "q7", map=ms.arrow(ranks), reduce=ms.max(), window=ms.tumbling(WINDOW), time="ts"
    )
    return highest.map(ms.arrow(lambda batch: _unranked(batch, "price")))


def _ranked(first: pa.Array, then: pa.Array) -> pa.RecordBatch:
    """All under one key, as numbers that are in the order of two others."""
    ranks = pc.bit_wise_or(pc.shift_left(first, _BITS), then)
    zeros = pa.array(np.zeros(len(ranks), np.int64))
    return pa.RecordBatch.from_arrays([zeros, ranks], names=["key", "value"])


def _unranked(batch: pa.RecordBatch, first: str) -> pa.RecordBatch:
    ranks, ends = batch.column("value"), batch.column("window_end")
    auctions = pc.bit_wise_and(ranks, (1 << _BITS) - 1)
    return pa.RecordBatch.from_arrays(
        [pc.shift_right(ranks, _BITS), auctions, ends], names=[first, "auction", "window_end"]
    )


def q5_on_spark(frames: Frames) -> DataFrame:
    window = F.window("ts", _WINDOW, _SLIDE).alias("window")
    counts = frames["bids"].groupBy(window, "auction").agg(F.count("*").alias("n"))
    return _best(counts.groupBy("window"), "n")


def q7_on_spark(frames: Frames) -> DataFrame:
    return _best(frames["bids"].groupBy(F.window("ts", _WINDOW).alias("window")), "price")


def _best(grouped: GroupedData, first: str) -> DataFrame:
    best = grouped.agg(F.max(F.struct(first, "auction")).alias("best"))
    return best.select("best.*", F.col("window.end").alias("window_end"))


_Q5_DUCKDB = f"""
    WITH counts AS (
        SELECT auction, window_end, count(*) AS n
        FROM ({_windows("bids", SLIDE, columns="auction")}) GROUP BY ALL)
    SELECT max((n, auction))[1] AS n, max((n, auction))[2] AS auction, window_end
    FROM counts GROUP BY window_end"""
_Q7_DUCKDB = f"""
    SELECT max((price, auction))[1] AS price, max((price, auction))[2] AS auction, window_end
    FROM ({_windows("bids", WINDOW, columns="price, auction")}) GROUP BY window_end"""


def _first_in_flink(of: str, first: str) -> str:
    return f"""
        SELECT {first}, auction, window_end FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY window_start, window_end ORDER BY {first} DESC, auction DESC) AS place
            FROM {of})
        WHERE place = 1"""


_Q5_FLINK = _first_in_flink(
    """(
    SELECT auction, count(*) AS n, window_start, window_end
    FROM HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start, window_end)""",
    "n",
)
_Q7_FLINK = _first_in_flink(_tumbling("bids"), "price")

# -- q8, q11 and q12 -------------------------------------------------------------------------


def q8_on_millstream(streams: Streams) -> ms.Stream:
    window = ms.tumbling(WINDOW)
    by_seller = streams["auctions"].key_by("seller").window(window, time="ts")
    sellers = by_seller.reduce("sellers", ms.max("ts"))
    return streams["persons"].join(
        sellers,
        "q8",
        window=window,
        key="id",
        right_key="key",
        time="ts",
        right_time="value",
        on_match=_new_seller,
    )


def _new_seller(person: int, registered: Any, opened: Any) -> dict[str, Any]:
    return {"key": person, "name": registered.name, "window_end": opened.window_end}


def q8_on_spark(frames: Frames) -> DataFrame:
    window = F.window("ts", _WINDOW)
    persons = frames["persons"].select("id", "name", window.alias("registered"))
    sellers = frames["auctions"].groupBy("seller", window.alias("opened")).count()
    new = persons.join(sellers, F.expr("id = seller AND registered = opened"))
    return new.select(F.col("id").alias("key"), "name", F.col("opened.end").alias("window_end"))


_Q8_DUCKDB = f"""
    SELECT id AS key, name, P.window_end
    FROM ({_windows("persons", WINDOW, columns="id, name")}) AS P
    SEMI JOIN ({_windows("auctions", WINDOW, columns="seller")}) AS A
    ON P.id = A.seller AND P.window_end = A.window_end"""
_Q8_FLINK = f"""
    SELECT P.id, P.name, P.window_end
    FROM (SELECT id, name, window_start, window_end FROM {_tumbling("persons")}) AS P
    JOIN (
        SELECT seller, window_start, window_end FROM {_tumbling("auctions")}
        GROUP BY seller, window_start, window_end) AS A
    ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end"""


def q11_on_millstream(streams: Streams) -> ms.Stream:
    by_bidder = streams["bids"].key_by("bidder").window(ms.session(GAP), time="ts")
    return by_bidder.aggregate("q11", n=ms.count())


def q12_on_millstream(streams: Streams) -> ms.Stream:
    by_bidder = streams["bids"].key_by("bidder").window(ms.tumbling(WINDOW), time="ts")
    return by_bidder.aggregate("q12", n=ms.count())


def q11_on_spark(frames: Frames) -> DataFrame:
    return _counts_on_spark(frames["bids"], session_column())


def q12_on_spark(frames: Frames) -> DataFrame:
    return _counts_on_spark(frames["bids"], F.window("ts", _WINDOW))


def _counts_on_spark(frame: DataFrame, window: Column) -> DataFrame:
    counts = frame.groupBy(window.alias("window"), F.col("bidder").alias("key"))
    return counts.agg(F.count("*").alias("n")).select(
        "key", "n", F.col("window.end").alias("window_end")
    )


_COUNTS = pa.schema([("key", _INT), ("n", _INT), ("window_end", _END)])

NEXMARK = (
    Workload(
        name="nexmark_q3",
        title="NEXMark q3, a join of auctions with their sellers",
        generate=persons_and_auctions,
        answer=pa.schema([("key", _INT), ("name", _TEXT), ("state", _TEXT), ("auction", _INT)]),
        millstream=q3_on_millstream,
        spark=q3_on_spark,
        duckdb=_Q3.replace("`", ""),
        flink=_Q3,
    ),
    Workload(
        name="nexmark_q5",
        title="NEXMark q5, the hottest auction of sliding windows",
        generate=bids,
        answer=pa.schema([("n", _INT), ("auction", _INT), ("window_end", _END)]),
        millstream=q5_on_millstream,
        spark=q5_on_spark,
        duckdb=_Q5_DUCKDB,
        flink=_Q5_FLINK,
    ),
    Workload(
        name="nexmark_q7",
        title="NEXMark q7, the highest bid of windows",
        generate=bids,
        answer=pa.schema([("price", _INT), ("auction", _INT), ("window_end", _END)]),
        millstream=q7_on_millstream,
        spark=q7_on_spark,
        duckdb=_Q7_DUCKDB,
        flink=_Q7_FLINK,
    ),
    Workload(
        name="nexmark_q8",
        title="NEXMark q8, new persons who open auctions",
        generate=persons_and_auctions,
        answer=pa.schema([("key", _INT), ("name", _TEXT), ("window_end", _END)]),
        millstream=q8_on_millstream,
        spark=q8_on_spark,
        duckdb=_Q8_DUCKDB,
        flink=_Q8_FLINK,
    ),
    Workload(
        name="nexmark_q11",
        title="NEXMark q11, the bids of sessions",
        generate=bids,
        answer=_COUNTS,
        millstream=q11_on_millstream,
        spark=q11_on_spark,
        duckdb=sessions_in_duckdb("bids", "bidder", "count(*) AS n"),
        flink=sessions_in_flink("bids", "bidder", "count(*) AS n"),
    ),
    Workload(
        name="nexmark_q12",
        title="NEXMark q12, the bids of windows",
        generate=bids,
        answer=_COUNTS,
        millstream=q12_on_millstream,
        spark=q12_on_spark,
        duckdb=f"""
            SELECT bidder AS key, count(*) AS n, window_end
            FROM ({_windows("bids", WINDOW, columns="bidder")}) GROUP BY ALL""",
        flink=f"""
            SELECT bidder, count(*), window_end FROM {_tumbling("bids")}
            GROUP BY bidder, window_start, window_end""",
    ),
)
