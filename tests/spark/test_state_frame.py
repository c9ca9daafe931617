from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.checkpoints.finding import NoCheckpoint, log_url
from millstream.checkpoints.reading import NotThere, UnreadableState
from millstream.spark import state_frame
from millstream.stores.opening import open_store
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
        "key": "struct<f0:string,f1:bigint>",
        "sizes": "array<bigint>",
        "note": "string",
    }
    row = frame.where("key.f0 = 'key7'").first()
    assert row is not None
    assert row.asDict(recursive=True) == {
        "key": {"f0": "key7", "f1": 7},
        "sizes": [7, 8],
        "note": '{"of": 7}',
    }


def test_what_is_not_there_is_told_before_anything_runs(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(NotThere, match="the jobs are count, mixed"):
        ms.read_state(folder, "cuont", spark=spark)
    with pytest.raises(NotThere, match="the epochs are 0, 1"):
        ms.read_state(folder, "count", epoch=7, spark=spark)
    with pytest.raises(NoCheckpoint):
        ms.read_state(folder / "store", "count", spark=spark)


def test_an_error_in_a_task_comes_back_typed(spark: SparkSession, folder: Path) -> None:
    store = open_store(log_url(folder), "other")
    key = store.scan("data/000000000000")[0]
    store.put({key: b"no pickle"})
    store.close()

    with pytest.raises(UnreadableState, match="job 'count'"):
        ms.read_state(folder, "count", spark=spark)
