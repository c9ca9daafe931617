"""The README's example and the guide's script run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.spark


def run_blocks(page: Path, folder: Path) -> None:
    """Run the Python blocks of a page, one after the other, as one script."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    (folder / "page.py").write_text("\n".join(blocks))
    subprocess.run([sys.executable, "page.py"], cwd=folder, check=True)


def test_the_example_of_the_readme_counts_the_words_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("the mill by the stream\n" * 3)

    run_blocks(ROOT / "README.md", tmp_path)

    rows = ds.dataset(tmp_path / "out" / "counts" / "epoch=000000000000").to_table().to_pylist()
    expected = Counter(["the", "mill", "by", "the", "stream"] * 3)
    assert {row["key"]: row["value"] for row in rows} == expected


def test_the_script_about_checkpoints_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "checkpoints.md", tmp_path)

    assert sorted(path.name for path in (tmp_path / "views").glob("epoch=*")) == [
        f"epoch={epoch:012d}" for epoch in range(3)
    ]


def test_the_script_of_the_guide_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "guide.md", tmp_path)

    assert (tmp_path / "records" / "epoch=000000000000").is_dir()


def test_the_script_about_elasticity_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "elasticity.md", tmp_path)


def test_the_script_about_timers_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "timers.md", tmp_path)


def test_the_script_about_processors_of_spark_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "transform-with-state.md", tmp_path)


def test_the_script_about_windows_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "docs" / "windows.md", tmp_path)

    assert "sliding 20m every 10m" in (tmp_path / "windows.mmd").read_text()
