"""Which epochs of a chain a run can resume from, by the names of the files in Spark's logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import LocalFolder
from millstream.checkpoints.spark_logs import ResumableEpochs, surely_retained
from tests.checkpoints.links import chain_of, claim, manifest
from tests.checkpoints.spark_log_folders import write_logs


def lineage(epochs: int) -> Lineage:
    return chain_of(claim(), *(manifest(epoch) for epoch in range(epochs)))


def resumable_epochs(root: Path, seen: Lineage) -> list[int]:
    resumable = ResumableEpochs(LocalFolder(root), seen)
    return [found.epoch for found in seen.manifests if found.epoch in resumable]


def test_an_epoch_that_spark_has_purged_is_not_resumable(tmp_path: Path) -> None:
    write_logs(tmp_path, 1, range(8, 12))

    assert resumable_epochs(tmp_path, lineage(12)) == [8, 9, 10, 11]
    assert ResumableEpochs(LocalFolder(tmp_path), lineage(12)).span == (8, 11)


def test_the_logs_of_a_later_incarnation_cover_an_older_one_that_was_removed(
    tmp_path: Path,
) -> None:
    write_logs(tmp_path, 2, range(1, 5), after=2, source=1)
    seen = chain_of(
        claim(), *(manifest(e) for e in range(3)), claim(2, 2), manifest(3, incarnation=2)
    )

    assert resumable_epochs(tmp_path, seen) == [1, 2, 3]


@pytest.mark.parametrize("spoil", ["{", None])
def test_incomplete_logs_do_not_count(tmp_path: Path, spoil: str | None) -> None:
    write_logs(tmp_path, 1, range(3))
    origin = tmp_path / "000001" / "origin.json"
    if spoil is None:
        origin.unlink()
    else:
        origin.write_text(spoil)

    assert resumable_epochs(tmp_path, lineage(3)) == []
    assert ResumableEpochs(LocalFolder(tmp_path), lineage(3)).span is None


def test_without_logs_no_epoch_is_resumable(tmp_path: Path) -> None:
    assert resumable_epochs(tmp_path / "nowhere", lineage(2)) == []


def test_where_logs_cannot_be_read_sparks_default_retention_is_assumed() -> None:
    links = [manifest(epoch) for epoch in range(104)]

    assert surely_retained(links) == 4
    assert surely_retained(links[:50]) == 0
