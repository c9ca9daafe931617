"""The benchmarks' own contenders run, and count right."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.first_look import Course
from benchmarks.peers.contender import Contender
from benchmarks.peers.ours import BuiltinArrow, BuiltinSql, StatefulFunction
from benchmarks.peers.spark import GroupByCount

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "contender",
    [StatefulFunction(), BuiltinArrow(), BuiltinSql(), GroupByCount()],
    ids=lambda contender: type(contender).__name__,
)
def test_the_contender_counts_right_and_is_timed(
    spark: SparkSession, tmp_path: Path, contender: Contender
) -> None:
    course = Course(spark, tmp_path)
    text = course.text(epochs=2, words_per_epoch=2_000)

    measured = course.run(contender, text)

    assert len(measured.triggers) == 2
