from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.spark_logs import EpochNotRetainedError
from millstream.errors import ConfigError
from millstream.flow import read
from millstream.spark.folder import Folder
from millstream.spark.query_log_files import (
    QueryLogDamagedError,
    QueryLogs,
    SourcesChangedError,
    source_folders,
)
from millstream.spark.replay import open_replay

pytestmark = pytest.mark.spark

Epochs = dict[int, list[str]]
FILES = 22  # two compactions of the list of files read, at Spark's default of every tenth


class Checkpoint:
    """A root of incarnations, and queries on them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.logs = QueryLogs(Folder(spark, str(root)))

    def begin(
        self, incarnation: int, after: int | None, frame: DataFrame, by: int | None = None
    ) -> str:
        return self.logs.derive(incarnation, after, source_folders(frame), by=by)

    def run(
        self,
        incarnation: int,
        frame: DataFrame,
        *,
        fail_at: int | None = None,
        trigger: dict[str, Any] | None = None,
    ) -> Epochs:
        """Run the query of an incarnation and return the rows of each epoch."""
        epochs: Epochs = {}

        def receive(batch: Any, epoch: int) -> None:
            epochs[epoch] = sorted(row.value for row in batch.collect())
            if epoch == fail_at:
                raise RuntimeError("stop here")

        query = (
            frame.writeStream.foreachBatch(receive)
            .option("checkpointLocation", str(self.path(incarnation)))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        if fail_at is None:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="stop here"):
                query.awaitTermination()
        return epochs

    def path(self, incarnation: int) -> Path:
        return self.root / f"{incarnation:06d}"

    def newest_epoch(self, incarnation: int) -> int:
        """The newest epoch whose offsets an incarnation has."""
        names = [path.name for path in (self.path(incarnation) / "offsets").iterdir()]
        return max(int(name) for name in names if name.isdigit())

    def files(self, incarnation: int) -> set[str]:
        path = self.path(incarnation)
        return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Checkpoint:
    return Checkpoint(spark, tmp_path / "spark")


@pytest.fixture
def hadoop_only(spark: SparkSession) -> Iterator[None]:
    """Make local folders look like any other file system of Hadoop's."""
    conf: Any = spark._jsc.hadoopConfiguration()
    conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    yield
    conf.unset("fs.file.impl")


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    changed = []

    def change(name: str, value: str) -> None:
        changed.append(name)
        spark.conf.set(name, value)

    yield change
    for name in changed:
        spark.conf.unset(name)


def add_files(folder: Path, numbers: range, suffix: str = "txt", line: str = "{}") -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        path = folder / f"{number:03d}.{suffix}"
        path.write_text(line.format(number) + "\n")
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them


def text(spark: SparkSession, folder: Path, per_epoch: int = 1) -> DataFrame:
    return spark.readStream.option("maxFilesPerTrigger", per_epoch).text(str(folder))


def replay(spark: SparkSession, rows: int, per_epoch: int) -> DataFrame:
    records = [{"value": f"r{number}"} for number in range(rows)]
    return open_replay(spark, read.replay(records, rows_per_epoch=per_epoch))


def numbers(rows: range) -> list[str]:
    return sorted(map(str, rows))


@pytest.fixture(scope="module")
def long_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """An incarnation that read one file in each epoch, and died in the last one."""
    folder = tmp_path_factory.mktemp("long")
    add_files(folder / "in", range(FILES))
    made = Checkpoint(spark, folder / "spark")
    frame = text(spark, folder / "in")
    made.begin(1, None, frame)
    epochs = made.run(1, frame, fail_at=FILES - 1)
    assert epochs == {number: [str(number)] for number in range(FILES)}
    assert {"sources/0/9.compact", "sources/0/19.compact"} <= made.files(1)
    return made


@pytest.fixture
def died(long_run: Checkpoint, tmp_path: Path) -> Checkpoint:
    shutil.copytree(long_run.root, tmp_path / "spark")
    return Checkpoint(long_run.spark, tmp_path / "spark")


def inputs(long_run: Checkpoint, per_epoch: int = 1) -> DataFrame:
    return text(long_run.spark, long_run.root.parent / "in", per_epoch)


@pytest.mark.parametrize("after", [0, 8, 9, 18, 19])
def test_a_file_source_resumes_after_the_epoch_with_the_offsets_of_the_next_one(
    long_run: Checkpoint, died: Checkpoint, after: int
) -> None:
    frame = inputs(long_run, per_epoch=10)
    died.begin(2, after, frame)

    epochs = died.run(2, frame)

    cuts = [after + 1, *range(after + 2, FILES, 10), FILES]
    expected = [numbers(range(*cut)) for cut in pairwise(cuts)]
    assert epochs == dict(enumerate(expected, after + 1))


def test_an_epoch_that_spark_has_not_committed_runs_again(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    frame = inputs(long_run)
    died.begin(2, FILES - 1, frame)

    assert died.run(2, frame) == {FILES - 1: [str(FILES - 1)]}


def test_an_epoch_without_its_commit_is_the_last_one_copied(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    # With the offsets of epoch 6, Spark would take epoch 5 for done.
    (died.path(1) / "commits/5").unlink()

    died.begin(2, 5, inputs(long_run))

    assert died.newest_epoch(2) == 5


def test_only_what_is_needed_is_copied(long_run: Checkpoint, died: Checkpoint) -> None:
    for stray in ("state/0/1.delta", "offsets/.3.x.tmp", "sources/0/4.crc", "sources/0/.5.x.tmp"):
        (died.path(1) / stray).parent.mkdir(parents=True, exist_ok=True)
        (died.path(1) / stray).touch()

    died.begin(2, 10, inputs(long_run))

    epochs = {f"{kind}/{number}" for kind in ("commits", "offsets") for number in range(11)}
    listed = {f"sources/0/{number}" for number in range(12) if number != 9}
    assert died.files(2) == {
        "metadata",
        "origin.json",
        "offsets/11",
        "sources/0/9.compact",
        *epochs,
        *listed,
    }


def test_the_query_stays_the_same_one(long_run: Checkpoint, died: Checkpoint) -> None:
    died.begin(2, 5, inputs(long_run))

    assert (died.path(2) / "metadata").read_text() == (died.path(1) / "metadata").read_text()


def test_every_hadoop_file_system_has_the_same_files(
    long_run: Checkpoint, died: Checkpoint, hadoop_only: None
) -> None:
    died.begin(2, 10, inputs(long_run))
    other = Checkpoint(died.spark, died.root)
    assert not Folder(died.spark, str(died.root)).is_plain_local
    frame = inputs(long_run, per_epoch=100)

    other.begin(3, 10, frame)

    hidden = {name for name in other.files(3) if name.endswith(".crc")}
    assert other.files(3) - hidden == died.files(2)
    assert other.logs.incarnations() == [1, 2, 3]
    assert other.run(3, frame) == {11: ["11"], 12: numbers(range(12, FILES))}


def test_files_are_copied_where_hard_links_are_not_supported(
    long_run: Checkpoint, died: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    died.begin(2, 10, inputs(long_run))

    def refuse(source: str, target: str) -> None:
        raise PermissionError(source)

    monkeypatch.setattr(os, "link", refuse)
    died.begin(3, 10, inputs(long_run))

    assert died.files(3) == died.files(2)
    copy, original = died.path(3) / "offsets/7", died.path(1) / "offsets/7"
    assert copy.read_text() == original.read_text()
    assert not copy.samefile(original)


def test_a_file_that_an_older_driver_removes_meanwhile_is_skipped(
    died: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(died.spark, str(died.root))

    folder.copy(["offsets/1000", "offsets/1"], "000001", "copy")

    assert folder.names("copy/offsets") == ["1"]


def test_a_union_resumes_with_sources_that_had_no_data_yet(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    spark = checkpoint.spark
    add_files(tmp_path / "a", range(4))
    add_files(tmp_path / "late", range(0))
    add_files(tmp_path / "json", range(100, 104), "json", '{{"value": "{}"}}')
    (tmp_path / "parquet").mkdir()

    def frame() -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", 1).schema("value string")
        parts = [
            text(spark, tmp_path / "a"),
            text(spark, tmp_path / "late"),
            reader.json(str(tmp_path / "json")),
            reader.parquet(str(tmp_path / "parquet")),
        ]
        union = parts[0]
        for part in parts[1:]:
            union = union.union(part)
        return union

    checkpoint.begin(1, None, frame())
    first = checkpoint.run(1, frame(), fail_at=1)
    add_files(tmp_path / "late", range(200, 202))
    pq.write_table(pa.table({"value": ["300"]}), tmp_path / "parquet/300.parquet")
    second = checkpoint.run(1, frame(), fail_at=2)
    assert first == {0: ["0", "100"], 1: ["1", "101"]}
    assert second[2] == ["102", "2", "200", "300"]

    checkpoint.begin(2, 0, frame())
    again = checkpoint.run(2, frame())

    assert again == {1: first[1], 2: second[2], 3: ["103", "201", "3"]}


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_stream_that_is_used_twice_does_not_shift_the_source_folders(
    checkpoint: Checkpoint, tmp_path: Path, settings: Callable[[str, str], None], version: str
) -> None:
    settings("spark.sql.streaming.offsetLog.formatVersion", version)
    spark = checkpoint.spark
    add_files(tmp_path / "a", range(3))

    def frame(per_epoch: int) -> DataFrame:
        twice = replay(spark, 6, 2 * per_epoch)
        return twice.union(twice).union(text(spark, tmp_path / "a", per_epoch))

    checkpoint.begin(1, None, frame(1))
    checkpoint.run(1, frame(1), fail_at=2)
    checkpoint.begin(2, 0, frame(9))
    again = checkpoint.run(2, frame(9))

    assert source_folders(frame(1)) == (0, 0, 1)
    assert again[1] == ["1", "r2", "r2", "r3", "r3"]
    assert again[2] == ["2", "r4", "r4", "r5", "r5"]


def test_generated_rows_and_heartbeats_resume(checkpoint: Checkpoint) -> None:
    spark = checkpoint.spark

    def frame() -> DataFrame:
        generated = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        return generated.selectExpr("string(value) as value").union(
            ticks.where("false").selectExpr("string(value) as value")
        )

    trigger = {"processingTime": "0 seconds"}
    checkpoint.begin(1, None, frame())
    checkpoint.run(1, frame(), fail_at=3, trigger=trigger)
    (checkpoint.path(1) / "sources/1/0.crc").touch()
    checkpoint.begin(2, 1, frame())
    assert {name for name in checkpoint.files(2) if "sources" in name} == {"sources/1/0"}
    again = checkpoint.run(2, frame(), fail_at=4, trigger=trigger)

    assert again == {2: ["4", "5"], 3: ["6", "7"], 4: ["8", "9"]}
    began = [(checkpoint.path(number) / "sources/1/0").read_text() for number in (1, 2)]
    assert began[0] == began[1]


def test_a_run_can_go_back_to_an_epoch_and_resume_twice(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    died.begin(2, 4, inputs(long_run))
    died.run(2, inputs(long_run, 2), fail_at=7)
    died.begin(3, 6, inputs(long_run))

    again = died.run(3, inputs(long_run, 100))

    assert again == {7: ["8", "9"], 8: numbers(range(10, FILES))}
    assert died.newest_epoch(1) == FILES - 1


def test_an_incarnation_without_an_epoch_begins_anew(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    frame = inputs(long_run, 100)
    for incarnation, after in ((2, None), (3, -1)):
        died.begin(incarnation, after, frame)
        assert died.files(incarnation) == {"origin.json"}

    assert died.run(3, frame) == {0: numbers(range(FILES))}
    with pytest.raises(EpochNotRetainedError) as raised:
        died.begin(4, 5, frame)
    assert raised.value.retained == (0, 0)


def test_an_incomplete_folder_is_never_used(
    long_run: Checkpoint, died: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = inputs(long_run, 100)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            died.begin(2, 10, frame)
    assert "offsets/11" in died.files(2)
    died.path(3).mkdir()
    (died.path(3) / "origin.json").write_text('{"after": 1')
    assert died.logs.incarnations() == [1]

    died.begin(4, 20, frame)

    assert '"source": 1' in (died.path(4) / "origin.json").read_text()
    assert died.logs.incarnations() == [1, 4]


def test_an_existing_folder_is_replaced(long_run: Checkpoint, died: Checkpoint) -> None:
    died.begin(2, 10, inputs(long_run))
    died.begin(2, 5, inputs(long_run))

    assert died.newest_epoch(2) == 6


def test_offsets_of_a_fenced_driver_are_not_used(
    checkpoint: Checkpoint, tmp_path: Path, settings: Callable[[str, str], None]
) -> None:
    spark, folder = checkpoint.spark, tmp_path / "in"
    settings("spark.sql.streaming.minBatchesToRetain", "1")
    settings("spark.sql.streaming.asyncLogPurge.enabled", "false")
    add_files(folder, range(1))
    checkpoint.begin(1, None, text(spark, folder))
    checkpoint.run(1, text(spark, folder))
    checkpoint.begin(2, 0, text(spark, folder))
    add_files(folder, range(1, 5))
    checkpoint.run(2, text(spark, folder))
    woken = checkpoint.run(1, text(spark, folder, per_epoch=2))
    assert woken == {1: ["1", "2"], 2: ["3", "4"]}
    assert checkpoint.newest_epoch(2) == 4

    with pytest.raises(EpochNotRetainedError) as raised:
        checkpoint.begin(3, 2, text(spark, folder))

    assert raised.value.retained == (3, 4)
    assert "has only epochs 3 to 4" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_the_offsets_are_those_of_the_incarnation_that_committed(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    spark, folder = checkpoint.spark, tmp_path / "in"
    add_files(folder, range(1))
    checkpoint.begin(1, None, text(spark, folder))
    checkpoint.run(1, text(spark, folder))
    checkpoint.begin(2, 0, text(spark, folder))
    add_files(folder, range(1, 4))
    lost = checkpoint.run(2, text(spark, folder), fail_at=1)
    won = checkpoint.run(1, text(spark, folder, per_epoch=2), fail_at=2)
    assert lost[1] == ["1"]
    assert won[1] == ["1", "2"]

    checkpoint.begin(3, 1, text(spark, folder), by=1)

    assert checkpoint.run(3, text(spark, folder)) == {2: ["3"]}


def test_an_incarnation_that_never_ran_does_not_hide_older_offsets(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    frame = inputs(long_run)
    died.begin(2, 5, frame)  # asked to go back in time, and died before it began

    died.begin(3, 15, frame)

    assert died.newest_epoch(3) == 16


def test_an_epoch_that_only_an_older_incarnation_retains_is_copied_from_it(
    long_run: Checkpoint, died: Checkpoint
) -> None:
    died.begin(2, 15, inputs(long_run))
    for number in range(10):
        (died.path(2) / f"offsets/{number}").unlink()
    frame = inputs(long_run, 100)

    died.begin(3, 9, frame)

    assert died.run(3, frame) == {10: ["10"], 11: numbers(range(11, FILES))}


def test_the_error_names_the_epochs_of_all_folders(long_run: Checkpoint, died: Checkpoint) -> None:
    died.begin(2, 15, inputs(long_run))
    for number in range(3):
        (died.path(1) / f"offsets/{number}").unlink()
    for number in range(10):
        (died.path(2) / f"offsets/{number}").unlink()

    with pytest.raises(EpochNotRetainedError) as raised:
        died.begin(3, 1, inputs(long_run))

    assert raised.value.retained == (3, 16)


def test_an_epoch_whose_start_is_purged_is_rejected(long_run: Checkpoint, died: Checkpoint) -> None:
    # Without its commit the epoch itself would run again, and where it begins is gone.
    (died.path(1) / f"offsets/{FILES - 2}").unlink()

    with pytest.raises(EpochNotRetainedError):
        died.begin(2, FILES - 1, inputs(long_run))


def test_an_epoch_without_any_offsets_is_rejected(checkpoint: Checkpoint) -> None:
    with pytest.raises(EpochNotRetainedError, match=r"offset log in .* is empty") as raised:
        checkpoint.logs.derive(1, 0, [0])

    assert raised.value.retained is None


def test_another_number_of_sources_is_rejected(long_run: Checkpoint, died: Checkpoint) -> None:
    frame = inputs(long_run).union(inputs(long_run, 2))

    with pytest.raises(SourcesChangedError, match="reads 1 streams, and this one reads 2"):
        died.begin(2, 5, frame)

    assert died.logs.incarnations() == [1]


def test_a_gap_in_the_list_of_files_is_reported(long_run: Checkpoint, died: Checkpoint) -> None:
    (died.path(1) / "sources/0/13").unlink()
    with pytest.raises(QueryLogDamagedError, match="sources/0/13 is missing"):
        died.begin(2, 14, inputs(long_run))

    died.begin(3, 11, inputs(long_run))  # does not read it
    died.begin(4, 20, inputs(long_run), by=1)  # has it in a compacted entry

    assert died.logs.incarnations() == [1, 3, 4]


@pytest.mark.parametrize("content", ["", "v1", "v1\n{}", "v9\n{}\n{}", "v2\n{}\nname:{}"])
def test_unreadable_offsets_are_named(long_run: Checkpoint, died: Checkpoint, content: str) -> None:
    (died.path(1) / "offsets/11").unlink()
    (died.path(1) / "offsets/11").write_text(content)

    with pytest.raises(QueryLogDamagedError, match="offsets/11 is not a readable list of offsets"):
        died.begin(2, 10, inputs(long_run))


def test_prune_retains_the_newest(long_run: Checkpoint, died: Checkpoint) -> None:
    for incarnation in (2, 3, 5):
        died.begin(incarnation, 10, inputs(long_run))
    died.path(4).mkdir()
    died.path(6).mkdir()

    died.logs.prune(2)

    assert sorted(path.name for path in died.root.iterdir()) == ["000003", "000005", "000006"]
    assert died.logs.incarnations() == [3, 5]
    with pytest.raises(ConfigError, match="at least 1"):
        died.logs.prune(0)
