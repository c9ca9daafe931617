"""State larger than memory, on real Spark: cold keys on disk, and a node that dies with them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import ConfigError
from millstream.spark.options import RunConfig
from tests.spark.words import count, split

WORDS = 3000
EPOCHS = 4


def write_lines(folder: Path) -> Counter[str]:
    """One file for every epoch; every word comes in every other one."""
    words = [f"word-{number:05}" for number in range(WORDS)]
    for epoch in range(EPOCHS):
        lines = [" ".join(words[at : at + 20]) for at in range(epoch % 2 * 20, WORDS, 40)]
        (folder / f"{epoch}.txt").write_text("\n".join(lines) + "\n")
    return Counter(dict.fromkeys(words, EPOCHS // 2))


@pytest.mark.spark
def test_cold_keys_count_and_survive_the_death_of_their_node(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = write_lines(tmp_path)
    newest: dict[str, int] = {}
    nodes: list[int] = []

    def seen(rows: list[Any], epoch: int) -> None:
        newest.update((row[0], row[1]) for row in rows)
        if epoch == 2:
            os.kill(nodes.pop(), signal.SIGKILL)

    flow = ms.Workflow("spilling")
    lines = flow.source("lines", ms.read.text(tmp_path, max_files_per_epoch=1))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.sink("out", ms.write.callback(seen))
    with ms.start(flow, spark=spark, nodes=3, partitions=3, memory_limit="64KB") as run:
        nodes += [node.pid for node in run.status().nodes]
        run.await_termination()
        state = dict(run.state("count").items())
        cold = [report.cold_keys for report in run.progress.recent]

    assert newest == expected
    assert {word: entries["n"] for word, entries in state.items()} == expected
    # Two nodes are left, each with all keys; 64 KB are not even two hundred.
    assert cold[-1] > WORDS


def test_an_invalid_limit_is_rejected() -> None:
    with pytest.raises(ConfigError, match="memory_limit must be a number of bytes"):
        RunConfig(memory_limit="lots")

    assert RunConfig(memory_limit="1.5MB").memory_bytes == 3 << 19
    assert RunConfig().memory_bytes is None


@pytest.mark.spark
def test_a_limit_without_a_job_that_could_spill_is_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = ms.Workflow("columns")
    lines = flow.source("lines", ms.read.text(tmp_path))
    lines.map_reduce("sum", map=split, reduce=ms.sum())

    with pytest.raises(ConfigError, match="have their columns in memory"):
        ms.start(flow, spark=spark, nodes=1, memory_limit=1 << 20)
