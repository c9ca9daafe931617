"""Nodes that are started while a workflow runs: for growth, on standby, and for those that died."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.elastic.pool_options import ExecutorSupply
from millstream.spark.executors import Executors, supply_of
from millstream.spark.handle import Run
from tests.chaos.clusters import cluster

PATIENCE = 180.0  # for what takes seconds


def count(key: int, values: list[int], state: Any) -> Iterator[tuple[int, int]]:
    state["n"] = state.get("n", 0) + len(values)
    yield key, state["n"]


@contextmanager
def running(spark: SparkSession, **options: Any) -> Iterator[Run]:
    """An endless workflow, after its first epoch."""
    flow = ms.Workflow("endless")
    rows = flow.source("rows", ms.read.rate(rows_per_second=200))
    counts = rows.map_reduce("count", map=lambda row: [(row.value % 20, 1)], reduce=count)
    counts.sink("out", ms.write.callback(lambda rows, epoch: None))
    with ms.start(flow, spark=spark, progress=False, slots=64, **options) as run:
        awaited(run, lambda: run.progress.last is not None)
        yield run


def awaited(run: Run, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, [event.text for event in run.events()]
        time.sleep(0.05)


def await_owners(run: Run, nodes: int) -> None:
    """Wait until so many nodes own slots, and no slot is on its way."""
    awaited(
        run, lambda: owners(run) == len(run.status().nodes) == nodes and not run.status().pending
    )


def owners(run: Run) -> int:
    return sum(node.slots > 0 for node in run.status().nodes)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def exact(run: Run) -> None:
    """Every key has been counted exactly as often as rows of it were committed."""
    scan = run.state("count").items()
    counts = [entries["n"] for _, entries in scan]
    assert len(counts) == 20 and max(counts) - min(counts) <= 1


@pytest.mark.spark
@pytest.mark.slow
def test_nodes_join_and_leave_a_running_workflow(spark: SparkSession) -> None:
    with running(spark, nodes=2) as run:
        first = {node.pid for node in run.status().nodes}
        run.scale(nodes=4)
        await_owners(run, 4)

        pids = {node.pid for node in run.status().nodes}
        assert first < pids and all(map(is_running, pids))
        assert {node.executor for node in run.status().nodes} == {"driver"}
        exact(run)

        run.scale(nodes=2)
        await_owners(run, 2)
        left = pids - {node.pid for node in run.status().nodes}
        awaited(run, lambda: not any(map(is_running, left)))
        exact(run)
        everybody = pids
    awaited(run, lambda: not any(map(is_running, everybody)))


@pytest.mark.spark
@pytest.mark.slow
def test_a_node_that_dies_is_replaced_and_gets_its_share_back(spark: SparkSession) -> None:
    with running(spark, nodes=2) as run:
        [dead, _] = run.status().nodes
        os.kill(dead.pid, signal.SIGKILL)
        awaited(run, lambda: run.status().lost == [dead.node])
        await_owners(run, 2)

        [replaced] = [event for event in run.events() if event.kind == "replaced"]
        assert replaced.facts["lost"] == dead.node
        assert float(str(replaced.facts["seconds"])) < 5.0
        exact(run)


@pytest.mark.spark
@pytest.mark.slow
def test_a_standby_node_takes_the_place_of_one_that_died(spark: SparkSession) -> None:
    with running(spark, nodes=2, standby=1, replace_after=None) as run:
        awaited(run, lambda: [node.role for node in run.status().nodes].count("standby") == 1)
        [spare] = [node for node in run.status().nodes if node.role == "standby"]
        assert spare.slots == 0 and is_running(spare.pid)

        os.kill(run.status().nodes[0].pid, signal.SIGKILL)
        await_owners(run, 2)

        assert spare.node in {node.node for node in run.status().nodes}
        exact(run)


@pytest.mark.cluster
@pytest.mark.slow
def test_nodes_start_on_the_executors_with_room_and_follow_new_ones() -> None:
    with cluster("local-cluster", 2) as started, running(started.spark, nodes=1) as run:
        [alone] = run.status().nodes
        run.scale(nodes=2)
        await_owners(run, 2)
        assert Counter(node.executor for node in run.status().nodes) == {"0": 1, "1": 1}

        os.kill(executor_of(alone.pid), signal.SIGKILL)
        awaited(run, lambda: run.status().lost == [alone.node])
        await_owners(run, 2)

        assert {node.executor for node in run.status().nodes} <= {"0", "1", "2"} - {alone.executor}
        assert len({node.executor for node in run.status().nodes}) == 2
        exact(run)


def executor_of(node: int) -> int:
    """The Java process that a node watches."""
    return int(Path(f"/proc/{node}/cmdline").read_bytes().split(b"\0")[-2])


@pytest.mark.cluster
@pytest.mark.slow
def test_executors_are_released_when_nodes_leave_and_requested_when_they_come() -> None:
    with (
        cluster("standalone", 2) as started,
        running(started.spark, nodes=2, listen=started.listen) as run,
    ):
        executors = Executors(started.spark.sparkContext)
        assert {executor.host for executor in executors.living()} == {"127.0.0.2", "127.0.0.3"}
        run.scale(nodes=1)
        awaited(run, lambda: len(executors.living()) == 1)
        await_owners(run, 1)
        exact(run)

        run.scale(nodes=2)
        await_owners(run, 2)
        assert len(executors.living()) == 2
        kinds = [event.kind for event in run.events()]
        for kind in ("executors-released", "executors-requested", "executors-granted"):
            assert kinds.count(kind) == 1
        exact(run)


@pytest.mark.parametrize(
    ("master", "dynamic", "supply"),
    [
        ("local", False, ExecutorSupply.LOCAL),
        ("local[*]", True, ExecutorSupply.LOCAL),
        ("local-cluster[2,1,1024]", False, ExecutorSupply.ELASTIC),
        ("spark://host:7077", False, ExecutorSupply.ELASTIC),
        ("yarn", False, ExecutorSupply.ELASTIC),
        ("k8s://https://host", True, ExecutorSupply.FIXED),
    ],
)
def test_the_master_says_whether_executors_can_be_requested(
    master: str, dynamic: bool, supply: ExecutorSupply
) -> None:
    assert supply_of(master, dynamic=dynamic) is supply
