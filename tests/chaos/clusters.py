"""The Spark clusters that chaos runs on: executors that are processes of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyspark
from pyspark.sql import SparkSession

import millstream
from millstream.spark.session import SETTINGS, use_own_python

Master = Literal["local-cluster", "standalone"]
HOSTS = ("127.0.0.2", "127.0.0.3")
# Of a JVM that lives for seconds, half of the time would go into compiling what it runs once.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_HOME = Path(pyspark.__file__).parent
_START_TIMEOUT = 180.0


@dataclass(frozen=True)
class Cluster:
    """A session, and what there is to know about its executors."""

    master: Master
    spark: SparkSession
    executors: int
    listen: str | None
    logs: Path

    def executor_ids(self) -> list[str]:
        """The executors that are there now, without the driver."""
        found = self.spark.sparkContext._jsc.sc().getExecutorIds()
        return sorted((str(found.apply(at)) for at in range(found.size())), key=int)

    def await_executors(self) -> None:
        """Wait until the executors that were killed have been replaced."""
        deadline = time.monotonic() + _START_TIMEOUT
        while len(self.executor_ids()) < self.executors:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.executors} executors wanted, {self.executor_ids()}")
            time.sleep(0.1)

    def complaints(self, since: float) -> list[str]:
        """The tracebacks through our code that workers and nodes wrote to their stderr."""
        found = []
        for file in sorted(self.logs.glob("**/stderr")):
            if file.stat().st_mtime >= since:
                name = "/".join(file.parts[-3:-1])
                reported = _tracebacks(file.read_text(errors="replace").splitlines())
                found += [f"{name}: {text}" for text in reported if "millstream" in text]
        return found


def _tracebacks(lines: list[str]) -> Iterator[str]:
    """The tracebacks among the lines of Spark's log."""
    at = 0
    while at < len(lines):
        start = at
        at += 1
        if lines[start].startswith("Traceback"):
            while at < len(lines) and lines[at].startswith(" "):
                at += 1
            at += 1  # the exception itself
            yield "\n    ".join(lines[start:at])


@contextmanager
def cluster(master: Master, executors: int, *, log_level: str = "OFF") -> Iterator[Cluster]:
    """Start a cluster with so many executors, of one core each; one at a time in a process."""
    if master == "local-cluster":
        with session(f"local-cluster[{executors},1,1024]", log_level) as spark:
            logs = _HOME / "work" / str(spark.sparkContext.applicationId)
            yield Cluster(master, spark, executors, None, logs)
        shutil.rmtree(logs, ignore_errors=True)
        return
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        hosts = [HOSTS[at % len(HOSTS)] for at in range(executors)]
        with standalone(Path(folder), hosts) as url, session(url, log_level) as spark:
            yield Cluster(master, spark, executors, "127.0.0.1", Path(folder))


def prepare_environment() -> None:
    """Let what JVMs start find Millstream: they take their environment from this process."""
    package = str(Path(millstream.__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_own_python()


@contextmanager
def session(
    master: str, log_level: str = "OFF", more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with executors of one core, unless ``more`` settings say otherwise."""
    prepare_environment()
    builder = SparkSession.builder.master(master).appName("millstream chaos")
    settings = {
        **SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        **(more or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def standalone(folder: Path, hosts: list[str], cores: int = 1) -> Iterator[str]:
    """A master, and a worker with so many cores on each of the hosts; yields the master's URL."""
    prepare_environment()
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(_HOME),
        "SPARK_NO_DAEMONIZE": "1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    ]
    for at, host in enumerate(hosts):
        work = ["--work-dir", str(folder / f"worker{at}"), "--webui-port", "0"]
        commands.append(
            [f"{deploy}.worker.Worker", "--host", host, "-c", str(cores), "-m", "1g", *work, url]
        )
    log = folder / "cluster.log"
    with log.open("w") as out:
        processes = [
            subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), *command],
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
            for command in commands
        ]
    try:
        deadline = time.monotonic() + _START_TIMEOUT
        while log.read_text().count("Registering worker") < len(hosts):
            if time.monotonic() > deadline:
                raise TimeoutError(log.read_text()[-3000:])
            time.sleep(0.1)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
