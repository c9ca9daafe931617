"""Which epochs of a chain Spark can still go on from, by the names of its notes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.spark_logs import LocalLogFolder, LoggedEpochs
from tests.checkpoints.links import chain_of, claim, manifest
from tests.checkpoints.spark_log_folders import note


def lineage(epochs: int) -> Lineage:
    return chain_of(claim(), *(manifest(epoch) for epoch in range(epochs)))


def reached(root: Path, seen: Lineage) -> list[int]:
    noted = LoggedEpochs(LocalLogFolder(root), seen)
    return [found.epoch for found in seen.manifests if noted.reach(found.epoch)]


def test_what_spark_has_deleted_is_not_reached_though_the_chain_has_it(tmp_path: Path) -> None:
    note(tmp_path, 1, range(8, 12))

    assert reached(tmp_path, lineage(12)) == [8, 9, 10, 11]
    assert LoggedEpochs(LocalLogFolder(tmp_path), lineage(12)).span == (8, 11)


def test_the_notes_of_a_later_incarnation_do_for_an_older_one_that_is_gone(tmp_path: Path) -> None:
    note(tmp_path, 2, range(1, 5), after=2, source=1)
    seen = chain_of(
        claim(), *(manifest(e) for e in range(3)), claim(2, 2), manifest(3, incarnation=2)
    )

    assert reached(tmp_path, seen) == [1, 2, 3]


@pytest.mark.parametrize("spoil", ["{", None])
def test_notes_that_were_never_finished_do_not_count(tmp_path: Path, spoil: str | None) -> None:
    note(tmp_path, 1, range(3))
    origin = tmp_path / "000001" / "origin.json"
    if spoil is None:
        origin.unlink()
    else:
        origin.write_text(spoil)

    assert reached(tmp_path, lineage(3)) == []
    assert LoggedEpochs(LocalLogFolder(tmp_path), lineage(3)).span is None


def test_without_a_folder_nothing_is_reached(tmp_path: Path) -> None:
    assert reached(tmp_path / "nowhere", lineage(2)) == []
