"""Spark's own state after the loss of an executor, as benchmarks/recovery.py times it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks import recovery


@pytest.mark.cluster
@pytest.mark.slow
def test_the_reload_of_sparks_state_is_timed(tmp_path: Path) -> None:
    # A process has one Spark context, and the other tests need theirs.
    code = f"""
        from pathlib import Path
        from benchmarks.recovery import spark_results
        results = {{r.name: r.value for r in spark_results(Path({str(tmp_path)!r}), 2_000)}}
        assert results["spark_reload_s"] > 0, results
    """
    root = Path(recovery.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=root, capture_output=True, text=True
    )
    if "StackOverflowError" in done.stderr:
        pytest.skip("Spark ended its own query: its search for known errors ran out of stack")
    assert done.returncode == 0, done.stderr[-3000:]
