"""Runs that go on from a checkpoint on real Spark: what they keep, and what they refuse."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import open_checkpoint
from millstream.checkpoints.spark_logs import EpochNotRetainedError
from millstream.coordinator.claim import Recovery
from millstream.coordinator.service import Coordinator
from millstream.errors import ConfigError
from millstream.flow.plan import plan
from millstream.node.machine import Durability
from millstream.spark.compaction import compact
from millstream.spark.query_log_files import QueryLogs
from millstream.spark.sink_writers import FileWriter
from tests.contract.backends import Harm
from tests.contract.log_backend import LogBackend
from tests.spark.words import count, split

pytestmark = pytest.mark.spark

TEXTS = ["a b a\nc\n", "b c d\n", "a e\ne e\n", "d d b\n", "f a\n"]


class Place:
    """A folder with input, a sink and a checkpoint; a file is an epoch."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._spark = spark
        self.books, self.out = folder / "books", folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.books.mkdir()
        self._files = 0

    def add(self, *texts: str) -> None:
        for text in texts:
            file = self.books / f"{self._files}.txt"
            file.write_text(text)
            moment = 1_000_000_000 + 60 * self._files  # Spark reads in the order of these
            os.utime(file, (moment, moment))
            self._files += 1

    def flow(
        self, job: str = "count", reduce: Any = count, *, more: str = "", **options: Any
    ) -> ms.Workflow:
        """Count words; with ``more``, have another job of that name behind it."""
        flow = ms.Workflow("words")
        lines = flow.source("lines", ms.read.text(self.books, max_files_per_epoch=1))
        counts = lines.flat_map(split).key_by().reduce(job, reduce, **options)
        counts.sink("out", ms.write.json(self.out))
        if more:
            behind = counts.map_reduce(more, map=lengths, reduce=count)
            behind.sink("more", ms.write.json(self.out.with_name("more")))
        return flow

    def run(self, flow: ms.Workflow | None = None, **options: Any) -> dict[str, Any]:
        """Run to the end of what there is; the state of all jobs."""
        flow = flow or self.flow()
        chosen: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "nodes": 2,
            "partitions": 2,
            "slots": 64,
            "progress": False,
            **options,
        }
        with ms.start(flow, spark=self._spark, **chosen) as run:
            run.await_termination()
            jobs = [vertex.name for _, vertex in plan(flow).jobs]
            return {job: dict(run.state(job).items()) for job in jobs}

    def counts(self) -> dict[str, dict[str, int]]:
        """The batch answer over all files that are there."""
        words = Counter(w for file in self.books.iterdir() for w in file.read_text().split())
        return {word: {"n": number} for word, number in words.items()}

    def rows(self) -> dict[int, dict[str, int]]:
        """What the sink shows, by epoch."""
        found: dict[int, dict[str, int]] = {}
        for folder in sorted(self.out.glob("epoch=*")):
            lines = [line for file in folder.glob("*.json") for line in file.open()]
            pairs = [tuple(json.loads(line).values()) for line in lines]
            found[int(folder.name.partition("=")[2])] = dict(pairs)
            assert len(found[int(folder.name.partition("=")[2])]) == len(pairs)
        return found

    def running_counts(self) -> dict[int, dict[str, int]]:
        """What the sink must show: of the words of each file, how many there were so far."""
        so_far: Counter[str] = Counter()
        found = {}
        for epoch, file in enumerate(sorted(self.books.iterdir())):
            words = file.read_text().split()
            so_far.update(words)
            found[epoch] = {word: so_far[word] for word in words}
        return found

    def lineage(self) -> Lineage:
        with closing(open_checkpoint(self.checkpoint)) as store:
            return Chain(store).read()


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    return Place(tmp_path, spark)


@pytest.mark.parametrize(
    ("durability", "recovery"), [("epoch", "eager"), ("epoch", "lazy"), ("interval", "lazy")]
)
def test_a_run_resumes_with_new_input_on_another_number_of_nodes(
    place: Place, durability: Durability, recovery: Recovery
) -> None:
    place.add(*TEXTS[:2])
    place.run(nodes=2, durability=durability)
    place.add(*TEXTS[2:4])

    state = place.run(nodes=3, durability=durability, recovery=recovery)

    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()
    assert place.lineage().incarnation == 2


def test_files_that_a_restart_needs_are_not_removed(place: Place) -> None:
    flow = ms.Workflow("words")
    cleaned = ms.read.json(place.books, schema="value string", options={"cleanSource": "delete"})
    lines = flow.source("lines", cleaned)
    lines.flat_map(split).key_by().reduce("count", count).sink("out", ms.write.json(place.out))

    with pytest.raises(ConfigError, match="'lines' has cleanSource"):
        place.run(flow, durability="interval")

    assert place.run(flow) == {"count": {}}


def test_a_run_without_new_input_changes_nothing(place: Place) -> None:
    place.add(*TEXTS[:2])
    place.run()

    assert place.run(nodes=1, recovery="lazy")["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_going_back_in_time_takes_state_and_rows_back(place: Place) -> None:
    place.add(*TEXTS[:4])
    place.run()
    (place.books / "2.txt").write_text("g g\n")  # what is read anew is another story
    (place.books / "3.txt").unlink()
    place.add(TEXTS[4])

    state = place.run(restore_epoch=1)

    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()
    assert [manifest.epoch for manifest in place.lineage().manifests] == [0, 1, 2, 3]


def test_an_unknown_epoch_cannot_be_restored(place: Place) -> None:
    place.add(TEXTS[0])
    place.run()

    with pytest.raises(EpochIncompleteError, match="epoch 7 cannot be restored"):
        place.run(restore_epoch=7)

    assert place.lineage().incarnation == 1


def test_an_epoch_that_spark_has_purged_is_rejected_with_nothing_changed(place: Place) -> None:
    place.add(*TEXTS[:3])
    place.run()
    for kind in ("offsets", "commits"):
        (place.checkpoint / "spark" / "000001" / kind / "0").unlink()

    with pytest.raises(EpochNotRetainedError, match=r"epoch 0: .* has only epochs 1 to 2"):
        place.run(restore_epoch=0)

    assert place.lineage().incarnation == 1
    assert place.run()["count"] == place.counts()


def lengths(pair: tuple[str, int]) -> Iterator[tuple[str, int]]:
    yield str(len(pair[0])), 1


def test_changed_jobs_are_rejected_until_the_change_is_declared(place: Place) -> None:
    place.add(TEXTS[0])
    place.run()
    place.add(TEXTS[1])

    with pytest.raises(ms.WorkflowChangedError, match=r"a function \(.*, and the reducer is .*sum"):
        place.run(place.flow(reduce=ms.sum()))
    with pytest.raises(
        ms.WorkflowChangedError, match=r"job 'count' is missing.*\n.*job 'tally' is new"
    ):
        place.run(place.flow("tally"))
    assert place.lineage().incarnation == 1


def test_jobs_are_renamed_added_and_removed(place: Place) -> None:
    place.add(TEXTS[0])
    place.run()
    place.add(TEXTS[1])
    flow = place.flow("tally", more="lengths")

    state = place.run(flow, changes=ms.changes(renamed={"count": "tally"}, added=["lengths"]))

    assert state["tally"] == place.counts()
    assert state["lengths"] == {"1": {"n": 3}}  # of the second epoch only

    place.add(TEXTS[2])
    meant = ms.changes(renamed={"tally": "count"}, removed=["lengths"])
    assert place.run(changes=meant)["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_job_that_is_not_durable_begins_empty(place: Place) -> None:
    place.add(*TEXTS[:2])
    place.run(place.flow(durable=False))
    place.add(TEXTS[2])

    state = place.run(place.flow(durable=False))

    assert state["count"] == {"a": {"n": 1}, "e": {"n": 3}}


@pytest.mark.parametrize("harm", ["flip", "tear"])
def test_a_damaged_epoch_is_computed_again_from_the_one_before(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Harm
) -> None:
    backend = LogBackend()
    backend.start(tmp_path)
    backend.fresh(small=False)
    place.add(*TEXTS[:3])
    place.run(store=backend.url)
    newest = place.lineage().newest
    assert newest is not None
    backend.damage(newest.deltas[0].key, harm)
    place.add(TEXTS[3])

    with caplog.at_level(logging.WARNING, "millstream"):
        state = place.run(store=backend.url)

    assert "newest epoch 2 cannot be restored" in caplog.text
    assert "resuming from epoch 1" in caplog.text
    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_lost_manifest_costs_the_epochs_from_it_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.add(*TEXTS[:4])
    place.run()
    lost = place.lineage().manifests[2]
    with closing(open_checkpoint(place.checkpoint)) as store:
        store.delete([f"chain/{lost.position:012d}"])

    with caplog.at_level(logging.WARNING, "millstream"):
        state = place.run()

    assert "the link is missing" in caplog.text
    assert "resuming from epoch 1" in caplog.text
    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_checkpoint_has_one_store_for_good(place: Place, tmp_path: Path) -> None:
    place.add(TEXTS[0])
    place.run(store=f"files://{tmp_path}/one")

    with pytest.raises(ConfigError, match=r"/one, not in files://.*/other; pass that one"):
        place.run(store=f"files://{tmp_path}/other")

    assert place.run()["count"] == place.counts()  # which it remembers


def test_an_epoch_that_spark_did_not_note_as_done_is_not_run_again(place: Place) -> None:
    place.add(*TEXTS[:2])
    place.run()
    commits = place.checkpoint / "spark" / "000001" / "commits"
    (commits / "1").unlink()
    seen = []

    place.add(TEXTS[2])
    flow = place.flow()
    state = place.run(flow, on_checkpoint=lambda result: seen.append(result.epoch))

    assert seen == [2]
    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()


def replace_driver(place: Place) -> None:
    """Claim the checkpoint as another driver would."""
    with closing(open_checkpoint(place.checkpoint)) as store:
        seen = Chain(store).read()
        assert Chain(store).claim(seen, seen.epoch, 0, "elsewhere", 1) is not None


@pytest.mark.parametrize(
    ("durability", "fails"), [("epoch", False), ("interval", False), ("epoch", True)]
)
def test_a_superseded_run_raises_and_publishes_nothing(
    place: Place, durability: Durability, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = FileWriter.stage

    def replaced_meanwhile(writer: FileWriter, frame: DataFrame, epoch: int, attempt: str) -> bool:
        full = stage(writer, frame, epoch, attempt)
        if epoch == 1:
            replace_driver(place)
            if fails:
                raise OSError("somebody has removed what was staged")
        return full

    monkeypatch.setattr(FileWriter, "stage", replaced_meanwhile)
    place.add(*TEXTS[:2])

    with pytest.raises(ms.SupersededError, match=r"incarnation 1 .* superseded by incarnation 2"):
        place.run(durability=durability)

    assert 1 not in place.rows()
    monkeypatch.undo()
    assert place.run(durability=durability)["count"] == place.counts()
    assert place.rows() == place.running_counts()


@pytest.mark.parametrize(
    "function", [(QueryLogs, "prune"), (Coordinator, "await_restored")], ids=lambda f: f[1]
)
def test_a_run_that_is_superseded_during_startup_raises(
    place: Place, function: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        replace_driver(place)
        raise FileNotFoundError("somebody has removed what was needed")

    place.add(*TEXTS[:2])
    monkeypatch.setattr(*function, gone)

    with pytest.raises(ms.SupersededError, match=r"incarnation 1 .* superseded by incarnation 2"):
        place.run()

    monkeypatch.undo()
    assert place.run()["count"] == place.counts()


@pytest.mark.parametrize("durability", ["epoch", "interval"])
def test_after_a_publication_that_failed_none_follows_until_a_restart(
    place: Place, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = FileWriter.publish

    def broken(writer: FileWriter, epoch: int, attempt: str) -> None:
        if epoch == 1:
            raise OSError("no space left")
        publish(writer, epoch, attempt)

    monkeypatch.setattr(FileWriter, "publish", broken)
    place.add(*TEXTS[:4])

    with pytest.raises(ms.EpochFailedError, match="no space left"):
        place.run(durability=durability, checkpoint_changes=1)

    assert set(place.rows()) == {0}
    monkeypatch.undo()
    assert place.run(durability=durability)["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_late_task_of_an_earlier_run_does_not_remove_a_published_epoch(place: Place) -> None:
    place.add(*TEXTS[:2])
    place.run()
    for folder in list(place.out.glob("epoch=*")):  # a task that opens its file after the rename
        late = place.out / "_millstream" / "staged" / f"{folder.name}-1.0"
        (late / "_temporary" / "0" / "_temporary" / "attempt_7").mkdir(parents=True)

    place.add(*TEXTS[2:])
    place.run()

    assert place.rows() == place.running_counts()
    assert os.listdir(place.out / "_millstream" / "staged") == []


def test_a_compacted_sink_can_be_restored_and_resumed(place: Place) -> None:
    place.add(TEXTS[0], "\n", TEXTS[1])
    place.run(partitions=16)
    before = place.rows()
    done = compact(str(place.out))
    compacted = place.rows()
    place.add(TEXTS[2])
    place.run(restore_epoch=1)

    assert sorted(before) == [0, 2]  # the epoch without rows has no folder
    assert compacted == before and done.epochs > 0
    assert place.rows() == {e: rows for e, rows in place.running_counts().items() if rows}
