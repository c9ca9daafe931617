"""The pool of nodes on clusters: nodes follow executors, and executors follow nodes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.spark.executors import Executors
from millstream.spark.handle import Run
from tests.chaos.clusters import cluster
from tests.spark.endless import await_owners, awaited, exact, running

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


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


@contextmanager
def standalone_run() -> Iterator[tuple[Executors, Run]]:
    """Two nodes on the two executors of a standalone cluster, which are there from the start."""
    with cluster("standalone", 2) as started:
        started.await_executors()
        with running(started.spark, nodes=2, listen=started.listen) as run:
            yield Executors(started.spark.sparkContext), run


def hosts(executors: Executors) -> set[str]:
    return {executor.host for executor in executors.living()}


def test_executors_are_released_when_nodes_leave_and_requested_when_they_come() -> None:
    with standalone_run() as (executors, run):
        awaited(run, lambda: hosts(executors) == {"127.0.0.2", "127.0.0.3"})
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
