"""A chain of stages is planned once; later epochs exchange its functions."""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from millstream.spark import stage_chain
from millstream.spark.arrow_maps import ArrowMaps
from millstream.spark.stage_chain import Chain, EpochRows, StageChains

ROUTED = StructType([StructField("route", IntegerType()), StructField("n", LongType())])
RESULT = StructType([StructField("n", LongType())])
ROWS = 10
WIDTH = 2

Batches = Iterator[pa.RecordBatch]


def route(times: int, batches: Batches) -> Batches:
    for batch in batches:
        ids = [times * n for n in batch.column("id").to_pylist()]
        targets = pa.array([n % WIDTH for n in ids], pa.int32())
        yield pa.RecordBatch.from_arrays([targets, pa.array(ids, pa.int64())], names=ROUTED.names)


def add(term: int, batches: Batches) -> Batches:
    for batch in batches:
        numbers = [n + term for n in batch.column("n").to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=RESULT.names)


def fail(batches: Batches) -> Batches:
    yield from add(0, batches)
    raise RuntimeError("the reason of the failure")


def chain(times: int, second: Callable[[Batches], Batches], width: int = WIDTH) -> Chain:
    return Chain(("id",), (partial(route, times), second), (ROUTED, RESULT), (width,))


@pytest.fixture
def chains(spark: SparkSession) -> StageChains:
    return StageChains(ArrowMaps())


def numbers_of(rows: EpochRows) -> list[int]:
    return sorted(row.n for row in rows.frame.collect())


def test_every_epoch_runs_its_own_functions_over_its_own_rows(
    spark: SparkSession, chains: StageChains
) -> None:
    for epoch in range(3):
        below = spark.range(epoch, epoch + ROWS, 1, 3)
        rows = chains.rows(below, chain(epoch, partial(add, 100 * epoch)))

        wanted = [epoch * n + 100 * epoch for n in range(epoch, epoch + ROWS)]
        assert numbers_of(rows) == sorted(wanted)


def test_functions_find_what_users_add_between_two_epochs(
    spark: SparkSession, chains: StageChains, tmp_path: Path
) -> None:
    def add_imported(batches: Batches) -> Batches:
        added = importlib.import_module("added_between_epochs")
        yield from add(added.TERM, batches)

    below = spark.range(0, ROWS, 1, 2)
    chains.rows(below, chain(1, partial(add, 0))).evaluate()
    archive = tmp_path / "added.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("added_between_epochs.py", "TERM = 100")
    spark.sparkContext.addPyFile(str(archive))

    rows = chains.rows(below, chain(1, add_imported))
    assert numbers_of(rows) == [100 + n for n in range(ROWS)]


def test_large_functions_are_broadcast(spark: SparkSession, chains: StageChains) -> None:
    below = spark.range(0, ROWS, 1, 2)
    for epoch, size in enumerate((0, 2 << 20, 0)):
        ballast = os.urandom(size)

        def add_all(ballast: bytes, batches: Batches) -> Batches:
            yield from add(len(ballast), batches)

        rows = chains.rows(below, chain(epoch, partial(add_all, ballast)))
        assert numbers_of(rows) == [epoch * n + size for n in range(ROWS)]


def test_a_chain_is_planned_once_for_each_shape(
    spark: SparkSession, chains: StageChains, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = Mock(wraps=chains._maps.apply)
    monkeypatch.setattr(chains._maps, "apply", planned)
    below = spark.range(0, ROWS, 1, 2)
    for width in (2, 3, 2, 3, 2):
        rows = chains.rows(below, chain(1, partial(add, 0), width))

        assert numbers_of(rows) == list(range(ROWS))
        assert rows.frame.rdd.getNumPartitions() == width
    assert planned.call_count == 4  # two shapes of two stages


def test_chains_work_if_spark_has_other_classes(
    spark: SparkSession, chains: StageChains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_chain, "_UDF", "org.apache.spark.NoSuchClass")
    below = spark.range(0, ROWS, 1, 2)
    for epoch in range(2):
        rows = chains.rows(below, chain(1, partial(add, epoch)))

        assert numbers_of(rows) == [n + epoch for n in range(ROWS)]


def test_several_evaluations_share_the_first_stage(
    spark: SparkSession, chains: StageChains
) -> None:
    counter = spark.sparkContext.accumulator(0)

    def counted(batches: Batches) -> Batches:
        for batch in route(1, batches):
            counter.add(batch.num_rows)
            yield batch

    below = spark.range(0, ROWS, 1, 2)
    rows = chains.rows(
        below, Chain(("id",), (counted, partial(add, 0)), (ROUTED, RESULT), (WIDTH,))
    )
    rows.evaluate()

    assert numbers_of(rows) == list(range(ROWS))
    assert counter.value == ROWS


def test_the_reason_of_a_failure_comes_first(spark: SparkSession, chains: StageChains) -> None:
    rows = chains.rows(spark.range(0, ROWS, 1, 2), chain(1, fail))

    with pytest.raises(Exception, match="the reason of the failure") as caught:
        rows.evaluate()

    assert "PythonException" in str(caught.value)[:100]
