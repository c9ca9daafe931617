"""The folders of a file sink: published epochs do not change, removal is atomic."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.checkpoints.chain import SupersededError
from millstream.coordinator.sink_folders import (
    STAGED,
    WITHDRAWN,
    OutputLostError,
    SinkFolders,
    staged_folder,
)
from millstream.coordinator.sink_layout import epoch_folder


class LocalTree:
    """A folder on disk, and what was done to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[tuple[str, ...]] = []

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def names(self, name: str) -> list[str]:
        folder = self.root / name
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def rename(self, source: str, target: str) -> bool:
        self.done.append(("rename", source, target))
        if not self.exists(source):
            return False
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        (self.root / source).rename(self.root / target)
        return True

    def delete(self, name: str) -> None:
        if self.exists(name):
            self.done.append(("delete", name))
            shutil.rmtree(self.root / name)

    def write(self, folder: str, text: str) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / folder / "part-0").write_text(text)

    def read(self, epoch: int) -> str:
        return (self.root / epoch_folder(epoch) / "part-0").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> LocalTree:
    return LocalTree(tmp_path)


def test_a_late_task_does_not_change_a_published_epoch(tree: LocalTree) -> None:
    folders = SinkFolders(tree, "sink")
    tree.write(staged_folder(3, "1.0"), "right")
    folders.publish(3, "1.0")
    tree.write(staged_folder(3, "1.0"), "half of it, late")
    folders.publish(3, "1.0")

    assert tree.read(3) == "right" and tree.names(STAGED) == []


def test_publishing_an_epoch_without_files_raises_output_lost(tree: LocalTree) -> None:
    with pytest.raises(OutputLostError, match=r"epoch 3, attempt 1\.0"):
        SinkFolders(tree, "sink").publish(3, "1.0")


def test_a_superseded_driver_withdraws_nothing(tree: LocalTree) -> None:
    held: list[bool] = []

    class Locked(SinkFolders):
        @contextmanager
        def _exclusive(self) -> Iterator[None]:
            held.append(True)
            yield
            held.pop()

    def require_claim() -> None:
        assert held, "a successor may withdraw and publish until the lock is ours"
        raise SupersededError(1, 2, "")

    tree.write(epoch_folder(3), "of a successor")

    with pytest.raises(SupersededError):
        Locked(tree, "sink").withdraw([3], require_claim)
    assert tree.read(3) == "of a successor"


def test_withdrawal_and_cleaning_rename_before_they_delete(tree: LocalTree) -> None:
    folders = SinkFolders(tree, "sink")
    tree.write(epoch_folder(3), "shown")
    tree.write(staged_folder(4, "1.0"), "staged")
    tree.write(staged_folder(5, "1.0"), "needed")

    folders.withdraw([3])
    folders.clean({(5, "1.0")})

    assert tree.names("") == ["_millstream"]
    assert tree.names(STAGED) == [f"{epoch_folder(5)}-1.0"]
    deleted = [name for what, name, *_ in tree.done if what == "delete"]
    assert deleted and all(name.startswith(WITHDRAWN) for name in deleted)
