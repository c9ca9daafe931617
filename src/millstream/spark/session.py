"""The Spark session: the active one, or a new one with settings for short epochs."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from millstream.errors import ConfigError
from millstream.spark.gateway import stop_session
from millstream.spark.jvm_output import quiet_start
from millstream.spark.spark_log import SparkLog

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


_lock = threading.Lock()
_ours: SparkSession | None = None
_log: SparkLog | None = None
_users = 0


def acquire(master: str | None) -> SparkSession:
    """The active session, or a new one of ours; call ``release`` when done."""
    global _ours, _users, _log
    with _lock:
        if SparkContext._active_spark_context is None:
            _ours, _users = _create(master), 0
            _log = SparkLog(_ours)
            atexit.register(_log.close)
        spark = _ours if _ours is not None else SparkSession.builder.getOrCreate()
        running = spark.sparkContext.master
        if master is not None and master != running:
            raise ConfigError(
                f"master={master!r}, but a Spark session on {running!r} is active; stop that "
                "session first, or leave master= out"
            )
        _users += spark is _ours
        return spark


def release(spark: SparkSession) -> None:
    """Stop a session of ours when its last user is done; never one of the user."""
    global _ours, _users, _log
    with _lock:
        if spark is not _ours:
            return
        _users -= 1
        if _users == 0:
            _ours = None
            stop_session(spark)
            if _log is not None:
                _log.close()
                atexit.unregister(_log.close)
                _log = None


def log_of(spark: SparkSession) -> SparkLog | None:
    """The log of a session of ours; None for a session of the user."""
    with _lock:
        ours = _log is not None and _log.is_written and spark is _ours
        return _log if ours else None


def _create(master: str | None) -> SparkSession:
    use_own_python()
    given = _settings_of_submit()
    wanted = master or given.get("spark.master") or os.environ.get("SPARK_MASTER") or "local[*]"
    settings = {"spark.app.name": "millstream", **SETTINGS, **given, "spark.master": wanted}
    conf = SparkConf().setAll(list(settings.items()))
    if wanted.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf.set("spark.driver.host", "127.0.0.1")
    with quiet_start(conf):
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _settings_of_submit() -> dict[str, str]:
    """Those of the spark-submit that has started this process, if one has."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


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
