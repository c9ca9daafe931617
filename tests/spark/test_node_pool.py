"""Nodes that are started while a workflow runs: for growth, on standby, and for those that died."""

from __future__ import annotations

import os
import signal

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.elastic.pool_options import ExecutorSupply
from millstream.spark.executors import supply_of
from tests.spark.endless import await_owners, awaited, exact, is_running, running


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

        def replacements() -> list[ms.Event]:
            return [event for event in run.events() if event.kind == "replaced"]

        awaited(run, lambda: bool(replacements()))
        [replaced] = replacements()
        assert replaced.facts["lost"] == dead.node
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
