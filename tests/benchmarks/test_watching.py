"""What is written to a folder is counted, whatever becomes of it."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.watching import Watch, Written


def test_files_count_once_however_they_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with Watch(folder) as watch:
        (folder / "plain").write_bytes(bytes(10))
        (folder / "renamed.tmp").write_bytes(bytes(200))
        (folder / "renamed.tmp").rename(folder / "renamed")
        (folder / "linked.tmp").write_bytes(bytes(3_000))
        os.link(folder / "linked.tmp", folder / "linked")
        (folder / "linked.tmp").unlink()
        (folder / "twice").write_bytes(bytes(40_000))
        os.link(folder / "twice", folder / "two names")
        with (folder / "empty.tmp").open("wb", buffering=0) as file:
            (folder / "empty.tmp").rename(folder / "written after")
            file.write(bytes(500_000))

    assert watch.written == Written(5, 543_210)


def test_files_in_new_folders_count_and_so_do_those_that_grow_or_are_replaced(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new"
    with Watch(folder) as watch:
        deep = folder / "a" / "b"
        deep.mkdir(parents=True)
        with (deep / "grows").open("ab", buffering=0) as file:
            for _ in range(4):
                file.write(bytes(25))
        for number in range(3):
            part = folder / f"part{number}"
            part.write_bytes(bytes(1_000))
            part.rename(folder / "replaced")

    assert watch.written.files == 4
    assert 1_100 <= watch.written.bytes <= 3_100


def test_a_file_that_is_removed_counts(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with Watch(folder) as watch:
        (folder / "short").write_bytes(bytes(7))
        (folder / "short").unlink()
        (folder / "stays").write_bytes(b"")

    assert watch.written.files == 2
