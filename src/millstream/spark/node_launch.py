"""Starting nodes on the executors, by Spark tasks.

The first nodes of a run are started by one task each, which waits for its node. Nodes for a
workflow that is running are started by :class:`LaunchJobs`, whose tasks do not wait: cores are few,
and the epochs need them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import cloudpickle
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread, SparkContext

from millstream.flow.function_shipping import ship
from millstream.node.joining import Admission
from millstream.node.process import (
    Launch,
    NodeStartError,
    Started,
    executor_pid,
    launch,
    launch_joining,
)
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.spark.gateway import BROKEN
from millstream.wire.calls import UnreachableError, call
from millstream.wire.membership import ClaimLaunch, EnterStartBarrier
from millstream.wire.timeouts import CALL_TIMEOUT
from millstream.work.failures import calling

ZoneFunction = Callable[[str, str], str]
"""Returns the fault zone of an executor, from its host and its id."""

ZONE_VARIABLE = "MILLSTREAM_ZONE"
_TOGETHER = 5.0


@dataclass(frozen=True)
class NodeTemplate:
    """What all nodes of a run have in common.

    A node's fault zone is what the pickled function ``zone`` returns, or else its executor's
    ``MILLSTREAM_ZONE``, or else its host. With ``listen`` it accepts connections of other hosts.
    """

    config: Launch
    listen: bool
    zone: bytes | None

    @classmethod
    def of(cls, config: Launch, *, listen: bool, zone: ZoneFunction | None) -> NodeTemplate:
        """A template whose function Spark can ship to its tasks."""
        return cls(config, listen, None if zone is None else ship(zone))

    def domain(self) -> Domain:
        """The fault domain of the executor on which this is called."""
        arguments = _executor_arguments()
        host = arguments.get("--hostname") or socket.gethostname()
        executor = arguments.get("--executor-id", "driver")
        return Domain(self._zone(host, executor), host, executor)

    def launch(self, node: NodeId, domain: Domain) -> Launch:
        """The configuration of one node in a fault domain."""
        return replace(self.config, node=node, host=domain.host if self.listen else None)

    def _zone(self, host: str, executor: str) -> str:
        if self.zone is None:
            return os.environ.get(ZONE_VARIABLE) or host
        function: ZoneFunction = cloudpickle.loads(self.zone)
        with calling("zone function", function):
            return str(function(host, executor))


def start_nodes(
    context: SparkContext, template: NodeTemplate, count: int, *, cores: int
) -> list[Started]:
    """Start ``count`` nodes, spread over the executors' cores, and wait until they serve."""
    tasks = context.parallelize(range(count), count)
    try:
        return list(tasks.mapPartitions(_Starter(template, min(count, cores))).collect())
    except Py4JJavaError as problem:
        raise NodeStartError(f"the nodes did not start: {str(problem)[:1000]}") from problem


# What tasks do are classes of this module, so that workers import them.


@dataclass(frozen=True)
class _Starter:
    template: NodeTemplate
    together: int

    def __call__(self, tasks: Iterable[int]) -> Iterator[Started]:
        for _ in tasks:
            node = NodeId(uuid.uuid4().hex)
            self._await_others(node)
            domain = self.template.domain()
            yield launch(self.template.launch(node, domain), domain)

    def _await_others(self, node: NodeId) -> None:
        # Tasks that run side by side take different cores, hence different executors.
        deadline = time.monotonic() + _TOGETHER
        coordinator = self.template.config.coordinator
        while call(coordinator, EnterStartBarrier(node)) < self.together:
            if time.monotonic() > deadline:
                return  # some cores are busy with other work
            time.sleep(0.02)


@dataclass(frozen=True)
class _Claimer:
    """Starts the nodes that the coordinator wants on the task's executor, and does not wait."""

    template: NodeTemplate

    def __call__(self, tasks: Iterable[int]) -> Iterator[int]:
        for _ in tasks:
            domain = self.template.domain()
            while (ticket := self._claim(domain)) is not None:
                config = self.template.launch(NodeId(uuid.uuid4().hex), domain)
                yield launch_joining(config, Admission(ticket, domain))

    def _claim(self, domain: Domain) -> str | None:
        request = ClaimLaunch(domain.executor, domain.host)
        try:
            return call(self.template.config.coordinator, request, CALL_TIMEOUT)
        except UnreachableError:
            return None  # the run is over, or the next job will do


class LaunchJobs:
    """Runs Spark jobs that start nodes, one at a time, beside the epochs.

    Spark decides where tasks run, so there are more of them than cores, and each asks the
    coordinator whether its executor is wanted.
    """

    def __init__(self, context: SparkContext, template: NodeTemplate) -> None:
        self._context = context
        self._claimer = _Claimer(template)
        self._group = f"millstream-nodes-{uuid.uuid4().hex[:8]}"
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, tasks: int) -> None:
        """Start a job of so many tasks in the background; none may be under way."""
        # A thread that closes its connection to the JVM when it ends.
        self._thread = InheritableThread(
            target=self._run, args=(tasks,), name="millstream-launch", daemon=True
        )
        self._thread.start()

    def failure(self) -> Exception | None:
        """The error of the last job, once."""
        problem, self._problem = self._problem, None
        return problem

    def close(self) -> None:
        """Cancel the job under way."""
        if self.is_busy:
            with contextlib.suppress(*BROKEN):
                self._context.cancelJobGroup(self._group)

    def _run(self, tasks: int) -> None:
        try:
            self._context.setJobGroup(self._group, "start nodes")
            self._context.parallelize(range(tasks), tasks).mapPartitions(self._claimer).collect()
        except Exception as problem:
            self._problem = problem


def _executor_arguments() -> dict[str, str]:
    words = Path(f"/proc/{executor_pid()}/cmdline").read_bytes().decode().split("\0")
    return {name: value for name, value in pairwise(words) if name[:2] == "--"}
