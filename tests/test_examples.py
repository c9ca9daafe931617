"""Every example runs as it stands and gives the batch answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
CLUSTER = "local-cluster[2,1,1024]"
ON_A_CLUSTER = [FOLDER / "trends.py", FOLDER / "wordcount.py"]


@pytest.mark.spark
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_gives_the_batch_answer(example: Path) -> None:
    _run(example, "local[2]")


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("example", ON_A_CLUSTER, ids=lambda path: path.stem)
def test_the_example_gives_it_with_executors_of_their_own(example: Path) -> None:
    _run(example, CLUSTER)


def _run(example: Path, master: str) -> None:
    done = subprocess.run(
        [sys.executable, str(example), "--master", master],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "exact: yes"
