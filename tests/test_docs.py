"""The README's example runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.spark
def test_the_example_of_the_readme_counts_the_words_of_a_folder(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "example.py").write_text(found.group(1))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("the mill by the stream\n" * 3)

    subprocess.run([sys.executable, "example.py"], cwd=tmp_path, check=True)

    rows = ds.dataset(tmp_path / "out" / "counts" / "epoch=000000000000").to_table().to_pylist()
    expected = Counter(["the", "mill", "by", "the", "stream"] * 3)
    assert {row["key"]: row["value"] for row in rows} == expected
