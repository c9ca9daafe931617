"""SIGKILL to drivers and executors: no orphan nodes, and no run that goes on with lost state."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ENDLESS = """
    import sys
    import millstream as ms

    def count(key, values, state):
        state["n"] = state.get("n", 0) + len(values)
        yield key, state["n"]

    flow = ms.Workflow("endless")
    rows = flow.source("rows", ms.read.rate(rows_per_second=100))
    counts = rows.map_reduce("count", map=lambda row: [(row.value % 10, 1)], reduce=count)
    counts.sink("out", ms.write.callback(lambda rows, epoch: print("epoch", epoch, flush=True)))
    with ms.start(flow, nodes=2, replicas=int(sys.argv[2]), master=sys.argv[1]) as run:
        for node in run.status().nodes:
            print("node", node.pid, flush=True)
        run.await_termination()
"""


@contextmanager
def driver(tmp_path: Path, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A driver in its own process group, killed with all that Spark started for it."""
    file = tmp_path / "driver.py"
    file.write_text(textwrap.dedent(script))
    process = subprocess.Popen(
        [sys.executable, str(file), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(word):
            return lines
    assert process.stderr is not None
    raise AssertionError(f"the driver ended: {lines} {process.stderr.read()[-3000:]}")


def node_pids(lines: list[str]) -> list[int]:
    return [int(found.group(1)) for line in lines if (found := re.match(r"node (\d+)", line))]


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_killing_the_driver_leaves_no_node_after_three_seconds(tmp_path: Path, master: str) -> None:
    with driver(tmp_path, ENDLESS, master, "1") as process:
        pids = node_pids(read_until(process, "epoch 1"))
        assert len(pids) == 2 and all(map(is_running, pids))

        process.send_signal(signal.SIGKILL)

        assert gone_within(pids, 3.0)


def executor_of(node: int) -> int:
    """The Java process that a node watches."""
    return int(Path(f"/proc/{node}/cmdline").read_bytes().split(b"\0")[-2])


def test_without_copies_killing_an_executor_ends_its_nodes_and_stops_the_run(
    tmp_path: Path,
) -> None:
    with driver(tmp_path, ENDLESS, "local-cluster[2,1,1024]", "0") as process:
        first, second = node_pids(read_until(process, "epoch 1"))
        assert executor_of(first) != executor_of(second)

        os.kill(executor_of(first), signal.SIGKILL)

        assert gone_within([first], 3.0)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "StateLostError" in errors and "the state of 2048 of 4096 slots is lost" in errors
        assert gone_within([second], 3.0)


TWO_JOBS = """
    import os, signal, sys, time
    from pathlib import Path
    import millstream as ms

    folder = Path(sys.argv[1])

    def split(line):
        return [(word, 1) for word in line.split()]

    def count(word, ones, state):
        state["n"] = state.get("n", 0) + sum(ones)
        yield word, sum(ones)

    def lengths(length, counts, state):
        state["n"] = state.get("n", 0) + sum(counts)
        if state["n"] > 100 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(int(sys.argv[1]), signal.SIGKILL)  # this node's executor
        yield length, state["n"]

    flow = ms.Workflow("two")
    lines = flow.source("lines", ms.read.text(folder / "books", max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=split, reduce=count)
    sums = counts.map_reduce("lengths", map=lambda pair: [(len(pair[0]), pair[1])], reduce=lengths)
    sums.sink("out", ms.write.parquet(folder / "out"))
    with ms.start(flow, nodes=2, master="local-cluster[2,1,1024]") as run:
        run.await_termination()
        print("state", {key: entries["n"] for key, entries in run.state("lengths").items()})
"""


def test_an_executor_that_dies_during_the_last_job_costs_nothing_but_time(tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for number in range(6):
        (books / f"{number}.txt").write_text("a bb ccc a bb a\n" * 20)

    with driver(tmp_path, TWO_JOBS, str(tmp_path)) as process:
        output, errors = process.communicate(timeout=120)

    assert (tmp_path / "killed").exists()
    assert process.returncode == 0, errors[-3000:]
    assert "state {1: 360, 2: 240, 3: 120}" in output


JVM_KILLED = """
    import os, signal, sys, time
    from pyspark import SparkContext
    import millstream as ms

    def count(key, values, state):
        state["n"] = state.get("n", 0) + len(values)
        yield key, state["n"]

    def started():
        flow = ms.Workflow("endless")
        rows = flow.source("rows", ms.read.rate(rows_per_second=100))
        counts = rows.map_reduce("count", map=lambda row: [(row.value % 10, 1)], reduce=count)
        counts.sink("out", ms.write.callback(lambda rows, epoch: print("epoch", epoch, flush=True)))
        return ms.start(flow, nodes=2, master=sys.argv[1], checkpoint="chk")

    def said(what, function):
        try:
            print(what, function(), flush=True)
        except Exception as problem:
            print(what, type(problem).__name__, str(problem).replace("\\n", " "), flush=True)

    run = started()
    pids = [node.pid for node in run.status().nodes]
    for pid in pids:
        print("node", pid, flush=True)
    while run.progress.last is None or run.progress.last.epoch < 1:
        time.sleep(0.05)
    state = run.state("count")
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    if sys.argv[2] == "reads first":
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(0.05)  # state can be read as long as nodes are there
        said("get", lambda: state.get(1))
        said("items", lambda: list(state.items()))
        said("status", lambda: run.status().phase)
    said("wait", lambda: run.await_termination())
    said("status", lambda: run.status().phase)
    said("get", lambda: state.get(1))
    said("stop", lambda: run.stop())
    with started() as again:
        print("resumed", again.status().committed, flush=True)
"""


@pytest.mark.parametrize("order", ["reads first", "waits first"])
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_killed_jvm_under_a_living_driver_is_a_typed_error_and_the_run_can_start_again(
    tmp_path: Path, master: str, order: str
) -> None:
    with driver(tmp_path, JVM_KILLED, master, order) as process:
        output, errors = process.communicate(timeout=180)

    said = output.splitlines()
    answers = [line for line in said if line.split()[0] in ("wait", "get", "items", "status")]
    typed = "SparkLostError the JVM of Spark's driver ended"
    for line in answers:
        reported = line.partition(" ")[2]
        assert reported == "failed" if line.startswith("status") else reported.startswith(typed), (
            line
        )
    assert len(answers) == (6 if order == "reads first" else 3), (said, errors[-3000:])
    assert "start the workflow again with checkpoint='chk'" in output
    assert "stop None" in said
    assert re.search(r"resumed [1-9]", output), errors[-3000:]
    assert "Py4J" not in output
    assert gone_within(node_pids(said), 3.0)
