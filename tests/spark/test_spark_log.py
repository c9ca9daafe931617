"""What a user sees of a failing function, in a script of their own and a session of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import millstream as ms


def parse(n):
    yield n % 3, 100 // (7 - n)


flow = ms.Workflow("failing")
numbers = flow.source("numbers", ms.read.replay([{"n": n} for n in range(9)], rows_per_epoch=3))
numbers.map_reduce("ratios", map=parse, reduce=ms.sum())
ms.run(flow, nodes=1, master="local[1]", progress=False)
"""
FINE = SCRIPT.replace("(7 - n)", "(9 - n)")


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def test_a_failing_function_prints_the_users_error_and_not_the_jvms(tmp_path: Path) -> None:
    run = run_script(SCRIPT, tmp_path)

    assert run.returncode == 1
    shown = run.stderr
    assert "the map of job 'ratios', parse, raised ZeroDivisionError" in shown
    assert "for record 7 (int); epoch 2 was not applied" in shown
    assert "yield n % 3, 100 // (7 - n)" in shown
    assert "\tat org.apache.spark" not in shown
    assert len(shown) < 5000
    [log] = re.findall(r"Spark's log: (\S+)", shown)
    assert "PythonException" in Path(log).read_text()


def test_a_run_that_ends_well_leaves_no_log(tmp_path: Path) -> None:
    run = run_script(FINE, tmp_path)

    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.glob("millstream-*"))


def test_a_users_session_logs_where_it_did_also_after_one_of_ours(tmp_path: Path) -> None:
    own = f"""
{FINE}
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
failing = ms.Workflow("again")
numbers = failing.source("numbers", ms.read.replay([{{"n": 7}}], rows_per_epoch=3))
numbers.map_reduce("ratios", map=lambda n: 1 / 0, reduce=ms.sum())
ms.run(failing, nodes=1, spark=spark, progress=False)
"""

    run = run_script(own, tmp_path)

    assert "\tat org.apache.spark" in run.stderr
    assert "Spark's log" not in run.stderr
