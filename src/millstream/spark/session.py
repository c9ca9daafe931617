"""The Spark session: found, or made with the settings that an epoch likes."""

from __future__ import annotations

import os
import re
import sys
import time

from pyspark.sql import SparkSession

from millstream.errors import ConfigError

_STREAMING = "org.apache.spark.sql.execution.streaming"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*]")


def use_own_python() -> None:
    """Make Spark's workers run this interpreter, which has our packages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def session(master: str | None) -> tuple[SparkSession, bool]:
    """The active session, or a new one; and whether it is ours to stop."""
    active = SparkSession.getActiveSession()
    if active is not None:
        running = active.sparkContext.master
        if master is not None and master != running:
            raise ConfigError(
                f"master={master!r}, but a Spark session on {running!r} is active; stop that "
                "session first, or leave master= out"
            )
        return active, False
    use_own_python()
    wanted = master or os.environ.get("SPARK_MASTER") or "local[*]"
    builder = SparkSession.builder.appName("millstream").master(wanted)
    if wanted.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark, True


def await_executors(spark: SparkSession, timeout: float = 30.0) -> int:
    """Wait for the executors that the master promises; return the number of cores."""
    context = spark.sparkContext
    promised = _LOCAL_CLUSTER.fullmatch(str(context.master))
    cores = int(context.defaultParallelism)
    if promised is None:
        return cores
    executors, each = int(promised.group(1)), int(promised.group(2))
    status = context._jsc.sc().getExecutorMemoryStatus
    deadline = time.monotonic() + timeout
    while status().size() < executors + 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    return executors * each


def same_host(spark: SparkSession) -> bool:
    """Whether every executor runs on the driver's host."""
    return str(spark.sparkContext.master).startswith("local")
