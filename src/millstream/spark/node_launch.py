"""Starting nodes on the executors, one Spark task for each."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import cloudpickle
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from millstream.flow.function_shipping import ship
from millstream.node.process import Launch, NodeStartError, Started, executor_pid, launch
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.wire.calls import call
from millstream.wire.membership import EnterStartBarrier
from millstream.work.failures import calling

ZoneFunction = Callable[[str, str], str]
"""Returns the fault zone of an executor, from its host and its id."""

ZONE_VARIABLE = "MILLSTREAM_ZONE"
_TOGETHER = 5.0


def start_nodes(
    context: SparkContext,
    config: Launch,
    count: int,
    *,
    cores: int,
    listen: bool,
    zone: ZoneFunction | None = None,
) -> list[Started]:
    """Start ``count`` nodes, spread over the executors' cores.

    A node's fault zone is what ``zone`` returns, or else its executor's ``MILLSTREAM_ZONE``, or
    else its host.
    """
    tasks = context.parallelize(range(count), count)
    starter = _Starter(config, min(count, cores), listen, None if zone is None else ship(zone))
    try:
        return list(tasks.mapPartitions(starter).collect())
    except Py4JJavaError as problem:
        raise NodeStartError(f"the nodes did not start: {str(problem)[:1000]}") from problem


@dataclass(frozen=True)
class _Starter:
    """What each task does; a class of this module, so that workers import it."""

    config: Launch
    together: int
    listen: bool
    zone: bytes | None

    def __call__(self, tasks: Iterable[int]) -> Iterator[Started]:
        for _ in tasks:
            node = NodeId(uuid.uuid4().hex)
            self._await_others(node)
            arguments = _executor_arguments()
            host = arguments.get("--hostname") or socket.gethostname()
            executor = arguments.get("--executor-id", "driver")
            yield launch(
                replace(self.config, node=node, host=host if self.listen else None),
                Domain(self._zone(host, executor), host, executor),
            )

    def _zone(self, host: str, executor: str) -> str:
        if self.zone is None:
            return os.environ.get(ZONE_VARIABLE) or host
        function: ZoneFunction = cloudpickle.loads(self.zone)
        with calling("zone function", function):
            return str(function(host, executor))

    def _await_others(self, node: NodeId) -> None:
        # Tasks that run side by side take different cores, hence different executors.
        deadline = time.monotonic() + _TOGETHER
        while call(self.config.coordinator, EnterStartBarrier(node)) < self.together:
            if time.monotonic() > deadline:
                return  # some cores are busy with other work
            time.sleep(0.02)


def _executor_arguments() -> dict[str, str]:
    words = Path(f"/proc/{executor_pid()}/cmdline").read_bytes().decode().split("\0")
    return {name: value for name, value in pairwise(words) if name[:2] == "--"}
