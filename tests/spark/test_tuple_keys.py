"""Tuples, and scalars of numpy and pandas, all the way from a map to sinks."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.spark.sink_writers import UnsupportedColumnError
from tests.spark.words import run_to_end

pytestmark = pytest.mark.spark

COUNTS = {("even", 0): 2, ("odd", 1): 2, ("even", 2): 2}
FIELDS = "key:struct<_1:string,_2:bigint>"


def keyed(row: Any) -> Iterator[tuple[Any, int]]:
    yield ("odd" if row % 3 % 2 else "even", row % 3), 1


def total(key: Any, values: list[int], state: Any) -> Iterator[tuple[Any, int]]:
    state["n"] = state.get("n", 0) + len(values)
    yield key, state["n"]


REDUCERS = {"function": total, "built-in": ms.count()}
reducers = pytest.mark.parametrize("reduce", REDUCERS.values(), ids=REDUCERS)


def counting(reduce: Any) -> tuple[ms.Workflow, Any]:
    flow = ms.Workflow("tuples")
    source = flow.source("numbers", ms.read.replay([{"n": n} for n in range(6)], rows_per_epoch=3))
    return flow, source.map_reduce("count", map=keyed, reduce=reduce)


@reducers
def test_a_tuple_key_is_a_tuple_for_callbacks_and_later_jobs(
    spark: SparkSession, reduce: Any
) -> None:
    def by_name(pair: Any) -> Iterator[tuple[str, int]]:
        key, _ = pair
        assert type(key) is tuple
        yield key[0], 1

    flow, counts = counting(reduce)
    seen: list[Any] = []
    counts.sink("rows", ms.write.callback(lambda rows, epoch: seen.extend(rows)))
    counts.map_reduce("names", map=by_name, reduce=ms.count())
    counts.key_by(lambda pair: pair[0]).reduce("again", ms.count())

    outcome = run_to_end(spark, flow, "names", "again")

    assert {row.key: row.value for row in seen} == COUNTS
    assert {type(row.key) for row in seen} == {tuple}
    assert outcome.state["names"] == {"even": 4, "odd": 2}
    assert outcome.state["again"] == dict.fromkeys(COUNTS, 2)


@reducers
def test_a_tuple_key_is_a_struct_in_files_and_frames(
    spark: SparkSession, tmp_path: Path, reduce: Any
) -> None:
    flow, counts = counting(reduce)
    schemas: list[str] = []
    counts.sink("parquet", ms.write.parquet(tmp_path / "parquet"))
    counts.sink("json", ms.write.json(tmp_path / "json"))

    def note(frame: DataFrame, epoch: int) -> None:
        schemas.append(frame.select("key", "key._1").schema.simpleString())

    counts.sink("frame", ms.write.foreach_batch(note))

    run_to_end(spark, flow)

    assert set(schemas) == {f"struct<{FIELDS},_1:string>"}
    rows = spark.read.parquet(str(tmp_path / "parquet"))
    assert FIELDS in rows.schema.simpleString()
    assert {tuple(row.key): row.value for row in rows.where("epoch = 1").collect()} == COUNTS
    lines = [
        json.loads(line)
        for file in (tmp_path / "json").glob("epoch=*1/*.json")
        for line in file.read_text().splitlines()
    ]
    assert {(line["key"]["_1"], line["key"]["_2"]): line["value"] for line in lines} == COUNTS


def test_csv_rejects_a_tuple_key_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    flow, counts = counting(ms.count())
    counts.sink("csv", ms.write.csv(tmp_path / "csv"))

    with pytest.raises(
        UnsupportedColumnError, match="csv does not support column 'key' of type struct"
    ):
        run_to_end(spark, flow)

    flow, counts = counting(ms.count())
    counts.map(lambda pair: (*pair[0], pair[1])).sink("csv", ms.write.csv(tmp_path / "flat"))
    run_to_end(spark, flow)
    assert (tmp_path / "flat").exists()


def test_scalars_of_numpy_and_pandas_are_what_they_say(spark: SparkSession) -> None:
    day = dt.datetime(2024, 2, 29)

    def numpy_map(n: int) -> Iterator[tuple[Any, Any]]:
        yield (np.str_("a"), np.int64(n % 2), pd.Timestamp(day)), np.float64(n)

    def numpy_reduce(key: Any, values: list[float], state: Any) -> Iterator[Any]:
        assert {type(value) for value in values} == {float}
        state["sum"] = np.float64(state.get("sum", 0.0)) + np.sum(values)
        yield key[1], np.datetime64(day), np.float64(state["sum"]), np.bool_(True)

    flow = ms.Workflow("numpy")
    source = flow.source("numbers", ms.read.replay([{"n": n} for n in range(6)], rows_per_epoch=3))
    seen: list[Any] = []
    sums = source.map_reduce("sums", map=numpy_map, reduce=numpy_reduce)
    sums.sink("rows", ms.write.callback(lambda rows, epoch: seen.extend(map(tuple, rows))))
    source.map_reduce("built-in", map=numpy_map, reduce=ms.sum())

    outcome = run_to_end(spark, flow, "sums", "built-in")

    keys = [("a", 0, day), ("a", 1, day)]
    assert outcome.state["sums"] == dict(zip(keys, [{"sum": 6.0}, {"sum": 9.0}], strict=True))
    assert {type(found["sum"]) for found in outcome.state["sums"].values()} == {float}
    assert outcome.state["built-in"] == dict(zip(keys, [6.0, 9.0], strict=True))
    assert set(seen[-2:]) == {(0, day, 6.0, True), (1, day, 9.0, True)}
