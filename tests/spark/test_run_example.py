from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.test_docstrings import run_example

pytestmark = pytest.mark.spark


def test_the_example_of_a_run_runs(spark: SparkSession) -> None:
    run_example("run")
