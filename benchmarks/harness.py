"""What every benchmark shares: its command line, its session, its results and their sidecar."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

import millstream
from benchmarks.quiet import load_now, require_quiet
from millstream.spark.session import SETTINGS, use_own_python

MASTER = "local[2]"
PARTITIONS = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Result:
    """One number."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Options:
    """What the command line asks for, and where to keep files meanwhile."""

    quick: bool
    folder: Path


Benchmark = Callable[[SparkSession, Options], list[Result]]


def main(description: str, benchmark: Benchmark, *, master: str = MASTER) -> None:
    """Run a benchmark from the command line."""
    take(asked_of(parser_for(description)), benchmark, master=master)


def parser_for(description: str) -> argparse.ArgumentParser:
    """The command line that benchmarks have in common."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less data, for a first impression")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument(
        "--even-if-loaded", action="store_true", help="run on a machine that does other work"
    )
    return parser


def asked_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the command line asks for; ends the process if the machine does other work."""
    asked = parser.parse_args()
    require_quiet(load_now(), anyway=asked.even_if_loaded)
    return asked


def take(asked: argparse.Namespace, benchmark: Benchmark, *, master: str = MASTER) -> None:
    """Run a benchmark as the command line asks."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        spark = session(master)
        try:
            results = benchmark(spark, Options(asked.quick, Path(folder)))
            about = environment(spark)
        finally:
            spark.stop()
    about["quick"] = asked.quick
    print_table(results)
    if asked.json is not None:
        write_results(asked.json, results, about)


def session(master: str = MASTER) -> SparkSession:
    """The one session that all contenders share."""
    use_own_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    builder = SparkSession.builder.appName("millstream-bench").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def note(text: str) -> None:
    """Say what goes on, apart from the results."""
    print(f"# {text}", file=sys.stderr, flush=True)


def print_table(results: list[Result]) -> None:
    """Print the results, one to a line."""
    width = max(len(result.name) for result in results)
    for result in results:
        print(f"{result.name:{width}}  {_number(result.value):>14}  {result.unit}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_results(file: Path, results: list[Result], about: dict[str, Any]) -> None:
    """Write the results, and beside them what they were taken on."""
    file.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    sidecar = file.with_suffix(".environment.json")
    sidecar.write_text(json.dumps(about, indent=2) + "\n")
    note(f"wrote {file} and {sidecar}")


def environment(spark: SparkSession | None) -> dict[str, Any]:
    """The machine and the versions; that of Java only with Spark, which runs in it."""
    java = {} if spark is None else {"java": _java_version(spark)}
    return {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "cpu": _cpu_model(),
            "load_average": os.getloadavg(),
        },
        "versions": {
            "python": platform.python_version(),
            "pyspark": pyspark.__version__,
            "pyarrow": pa.__version__,
            **java,
            "millstream": millstream.__version__,
        },
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _java_version(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.System.getProperty("java.version"))
