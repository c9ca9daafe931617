from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.checkpoints.location import NoCheckpointError, log_url
from millstream.checkpoints.stored_state import NotInCheckpointError, UnreadableStateError
from millstream.cli import main
from millstream.spark import state_frame
from millstream.stores.registry import open_store
from tests.checkpoints.written import Job, Writer, counting
from tests.work.running import job_of

pytestmark = pytest.mark.spark

PAIRS = [(f"key{number}", number) for number in range(100)]


def mixed(key: Any, values: list[Any], state: Any) -> None:
    state["sizes"] = [values[0], values[0] + 1]
    state["note"] = {"of": values[0]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state_frame, "_LEAST_BYTES", 100)
    (tmp_path / "store").mkdir()
    store = open_store(log_url(tmp_path), "writer")
    run = Writer(store, {**counting(), "mixed": Job(job_of(mixed))})
    run.commit({"count": PAIRS, "mixed": [((name, at), at) for name, at in PAIRS]})
    run.commit({"count": PAIRS[:10]})
    store.close()
    return tmp_path


def test_state_is_a_frame_whose_partitions_share_the_slots(
    spark: SparkSession, folder: Path
) -> None:
    frame = ms.read_state(folder, "count", spark=spark)

    assert frame.columns == ["key", "n"]
    assert frame.rdd.getNumPartitions() > 2
    expected = {name: 2 * at if at < 10 else at for name, at in PAIRS}
    assert sorted(map(tuple, frame.collect())) == sorted(expected.items())
    old = ms.read_state(f"log://{folder}/store", "count", epoch=0, spark=spark)
    assert old.agg({"n": "sum"}).first()[0] == sum(range(100))  # type: ignore[index]


def test_columns_have_the_types_that_hold_all_values(spark: SparkSession, folder: Path) -> None:
    frame = ms.read_state(folder, "mixed")

    assert dict(frame.dtypes) == {
        "key": "struct<_1:string,_2:bigint>",
        "sizes": "array<bigint>",
        "note": "string",
    }
    row = frame.where("key._1 = 'key7'").first()
    assert row is not None
    assert row.asDict(recursive=True) == {
        "key": {"_1": "key7", "_2": 7},
        "sizes": [7, 8],
        "note": '{"of": 7}',
    }


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


def test_a_run_resumes_from_a_restored_epoch(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"word": f"w{number % 7}", "n": number} for number in range(60)]
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> dict[str, dict[Any, Any]]:
        flow = ms.Workflow("words")
        words = flow.source("words", ms.read.replay(rows, rows_per_epoch=20))
        words.map_reduce("count", map=lambda row: [(row.word, row.n)], reduce=count).sink(
            "out", ms.write.parquet(tmp_path / "out")
        )
        words.map_reduce("overview", key="word", reduce=ms.aggregate(n=ms.count(), m=ms.mean("n")))
        with ms.start(flow, checkpoint=checkpoint, nodes=2) as started:
            started.await_termination()
            jobs = ("count", "overview")
            return {job: dict(started.state(job).items()) for job in jobs}

    states = run()
    outputs = ds.dataset(tmp_path / "out").to_table().to_pylist()

    def seen(job: str) -> dict[Any, Any]:
        found = [row.asDict() for row in ms.read_state(checkpoint, job, spark=spark).collect()]
        return {row.pop("key"): row for row in found}

    assert {job: seen(job) for job in states} == states
    assert main(["checkpoint", "restore", checkpoint, "0", "--yes"]) == 0
    assert len(seen("count")) == 7 and seen("count") != states["count"]

    assert run() == states
    assert sorted(map(str, ds.dataset(tmp_path / "out").to_table().to_pylist())) == sorted(
        map(str, outputs)
    )
    assert main(["checkpoint", "verify", checkpoint]) == 0
    assert "newest complete epoch: 2" in capsys.readouterr().out


def test_what_is_not_there_is_reported_before_anything_runs(
    spark: SparkSession, folder: Path
) -> None:
    with pytest.raises(NotInCheckpointError, match="the jobs are count, mixed"):
        ms.read_state(folder, "cuont", spark=spark)
    with pytest.raises(NotInCheckpointError, match="the epochs are 0, 1"):
        ms.read_state(folder, "count", epoch=7, spark=spark)
    with pytest.raises(NoCheckpointError):
        ms.read_state(folder / "store", "count", spark=spark)


def test_an_error_in_a_task_is_raised_typed(spark: SparkSession, folder: Path) -> None:
    store = open_store(log_url(folder), "other")
    key = store.scan("data/000000000000")[0]
    store.put({key: b"no pickle"})
    store.close()

    with pytest.raises(UnreadableStateError, match="job 'count'"):
        ms.read_state(folder, "count", spark=spark)
