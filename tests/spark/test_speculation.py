"""Speculation: two attempts of one task side by side, on a standalone master with two hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

HOSTS = ("127.0.0.2", "127.0.0.3")

SCRIPT = """
    import sys, time
    from collections import Counter
    from pathlib import Path
    from pyspark.sql import SparkSession
    import millstream as ms
    from millstream.spark.session import SETTINGS, use_own_python

    folder = Path(sys.argv[2])
    use_own_python()
    builder = SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1")
    settings = {
        **SETTINGS,
        "spark.executor.memory": "1g",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "200ms",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    known, until = spark.sparkContext._jsc.sc().getExecutorMemoryStatus, time.monotonic() + 60
    while known().size() < 3 and time.monotonic() < until:  # two executors, and the driver
        time.sleep(0.05)

    def dawdle(marker):
        try:
            (folder / marker).touch(exist_ok=False)
        except FileExistsError:
            (folder / f"{marker}-again").touch()
            return
        time.sleep(60)

    def split(line):
        if line.startswith("slow"):
            dawdle("map")
        return [(word, 1) for word in line.split()]

    def count(word, ones, state):
        state["n"] = state.get("n", 0) + sum(ones)
        yield word, sum(ones)

    def by_length(pair):
        # Runs in the task that fed the count of this word: its twin feeds the same unit again.
        if pair[0] == "slow":
            dawdle("feed")
        return [(len(pair[0]), pair[1])]

    flow = ms.Workflow("speculation")
    lines = flow.source("lines", ms.read.text(folder / "books"))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.map_reduce("lengths", map=by_length, reduce=ms.sum())
    with ms.start(flow, spark=spark, nodes=2, partitions=4, listen="127.0.0.1") as run:
        print("hosts", sorted(node.host for node in run.status().nodes))
        run.await_termination()
        print("counts", sorted((w, s["n"]) for w, s in run.state("count").items()))
        print("lengths", sorted(run.state("lengths").items()))
    spark.stop()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    home = Path(pyspark.__file__).parent
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    ]
    for host in HOSTS:
        work = ["--work-dir", str(tmp_path / host), "--webui-port", "0"]
        commands.append(
            [f"{deploy}.worker.Worker", "--host", host, "-c", "2", "-m", "2g", *work, url]
        )
    processes = []
    with open(tmp_path / "cluster.log", "w") as log:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *command],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
    deadline = time.monotonic() + 60
    while (tmp_path / "cluster.log").read_text().count("Registering worker") < len(HOSTS):
        assert time.monotonic() < deadline, (tmp_path / "cluster.log").read_text()
        time.sleep(0.1)
    yield url
    for process in processes:
        process.terminate()
        process.wait()


def test_two_attempts_side_by_side_count_once(tmp_path: Path, master: str) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for number in range(4):
        first = "slow\n" if number == 0 else ""
        (books / f"{number}.txt").write_text(first + "a bb a\n" * 10)
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(SCRIPT))

    done = subprocess.run(
        [sys.executable, str(script), master, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert f"hosts {list(HOSTS)}" in done.stdout
    assert (tmp_path / "map-again").exists() and (tmp_path / "feed-again").exists()
    assert "counts [('a', 80), ('bb', 40), ('slow', 1)]" in done.stdout
    assert "lengths [(1, 80), (2, 40), (4, 1)]" in done.stdout
