"""What ``explain`` says of every example is kept beside it, and is still so.

After a change that is meant: ``EXPLAIN=write pytest tests/test_explained.py``, and read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import millstream as ms
from examples import average_by_sensor, macd, trends, two_jobs, wordcount

FOLDER = Path(__file__).parent.parent / "examples"
DATA = Path("data")
NOTHING = ms.read.replay(pa.table({"symbol": [""], "price": [0.0]}))
WORKFLOWS: dict[str, Callable[[], ms.Workflow]] = {
    "average_by_sensor": lambda: average_by_sensor.workflow(DATA),
    "macd-map": lambda: macd.workflow("map", NOTHING, DATA),
    "macd-panes": lambda: macd.workflow("panes", NOTHING, DATA),
    "macd-simple": lambda: macd.workflow("simple", NOTHING, DATA),
    "trends": lambda: trends.workflow(NOTHING, DATA),
    "two_jobs": lambda: two_jobs.workflow(DATA),
    "wordcount": lambda: wordcount.workflow(DATA),
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_explain_says_of_the_example(name: str) -> None:
    kept = FOLDER / "explained" / f"{name}.txt"
    said = WORKFLOWS[name]().explain()
    if os.environ.get("EXPLAIN") == "write":
        kept.write_text(said)
    assert said == kept.read_text()


def test_every_example_is_explained() -> None:
    examples = {path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert {name.partition("-")[0] for name in WORKFLOWS} == examples
