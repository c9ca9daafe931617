from __future__ import annotations

from pathlib import Path

import pytest

from millstream.checkpoints.location import NoCheckpointError, find_store, log_url, open_checkpoint


def test_a_folder_holds_a_log_by_default(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()

    assert find_store(tmp_path) == f"log://{tmp_path}/store"
    assert find_store(str(tmp_path)) == log_url(tmp_path)


def test_a_relative_folder_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "50 % off" / "store").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert find_store("50 % off") == f"log://{tmp_path}/50%20%25%20off/store"


@pytest.mark.parametrize("url", ["redis://host:6379/3", "files:///checkpoint/store"])
def test_a_folder_may_name_another_store(tmp_path: Path, url: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store.url").write_text(f"{url}\n")

    assert find_store(tmp_path) == url
    assert find_store(tmp_path, "redis://:secret@host:6379/3") == "redis://:secret@host:6379/3"


def test_the_log_in_a_folder_that_was_moved_is_the_one_in_it(tmp_path: Path) -> None:
    (tmp_path / "store.url").write_text("log:///where/it/was/store\n")
    assert find_store(tmp_path) == "log:///where/it/was/store"

    (tmp_path / "store").mkdir()

    assert find_store(tmp_path) == log_url(tmp_path)


def test_a_checkpoint_may_be_the_url_of_a_store() -> None:
    assert find_store("files:///somewhere") == "files:///somewhere"


def test_a_folder_without_a_checkpoint_is_rejected_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(
        NoCheckpointError, match=r"neither a folder 'store' nor a file 'store\.url'"
    ):
        open_checkpoint(tmp_path)

    assert list(tmp_path.iterdir()) == []
