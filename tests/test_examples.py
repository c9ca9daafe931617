"""Every example runs as it stands and gives the batch answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
MASTERS = [
    pytest.param("local[2]", marks=pytest.mark.spark),
    pytest.param("local-cluster[2,1,1024]", marks=[pytest.mark.spark, pytest.mark.cluster]),
]


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_gives_the_batch_answer(example: Path, master: str) -> None:
    done = subprocess.run(
        [sys.executable, str(example), "--master", master],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "exact: yes"
