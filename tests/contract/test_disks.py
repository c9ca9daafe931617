"""The disks that misbehave do so."""

from __future__ import annotations

import os
from pathlib import Path

from tests.contract.disks import power_cut


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


def test_what_was_there_before_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "changed").write_bytes(b"old")
    (tmp_path / "folder" / "removed").write_bytes(b"old")
    before = tree(tmp_path)
    with power_cut(tmp_path):
        (tmp_path / "folder" / "changed").write_bytes(b"new")
        (tmp_path / "folder" / "removed").unlink()
        (tmp_path / "new").mkdir()
    assert tree(tmp_path) == before


def test_only_what_was_synced_survives(tmp_path: Path) -> None:
    with power_cut(tmp_path):
        for name in ("both", "name", "content", "appended", "renamed"):
            (tmp_path / name).write_bytes(b"content")
        for name in ("both", "content", "appended", "renamed"):
            sync(tmp_path / name)
        (tmp_path / "content").rename(tmp_path / "hidden")
        (tmp_path / "hidden").unlink()
        (tmp_path / "full").mkdir()
        (tmp_path / "empty").mkdir()
        (tmp_path / "full" / "kept").write_bytes(b"content")
        sync(tmp_path / "full" / "kept")
        sync(tmp_path / "full")
        (tmp_path / "empty" / "lost").write_bytes(b"content")
        sync(tmp_path / "empty" / "lost")
        sync(tmp_path)
        (tmp_path / "renamed").rename(tmp_path / "other")
        with open(tmp_path / "appended", "ab") as file:
            file.write(b" and more")
        (tmp_path / "late").write_bytes(b"content")
        sync(tmp_path / "late")
    assert tree(tmp_path) == {
        "both": b"content",
        "name": b"",
        "appended": b"content",
        "renamed": b"content",
        "full": None,
        "full/kept": b"content",
        "empty": None,
    }
