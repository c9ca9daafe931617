"""Running a workflow: ``start`` returns a handle, ``run`` blocks until the end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from millstream.flow.plan import Plan, plan
from millstream.flow.sources import DataFrameSource
from millstream.flow.vertices import SourceVertex
from millstream.flow.workflow import Workflow
from millstream.observe.progress import EpochProgress, Totals
from millstream.spark.handle import Run
from millstream.spark.options import RunConfig, with_options
from millstream.spark.session import acquire, release
from millstream.spark.startup import Startup


@dataclass(frozen=True)
class Summary:
    """What a finished run did."""

    workflow: str
    totals: Totals
    last: EpochProgress | None


@with_options(RunConfig)
def start(workflow: Workflow, config: RunConfig) -> Run:
    """Start a workflow and return its handle.

    It runs on ``spark``, or else on the session of its sources, or on one of its own on ``master``.

    ``nodes`` defaults to one per executor core. Every node has a partition of each shuffle, or
    several if there would be fewer than ``partitions``, by default as many as executor cores.
    ``standby`` more nodes are kept running without slots, for those that die and for growth. A node
    that died is replaced within ``replace_after``, if an executor has room for it; with None it is
    not. Every slot has ``replicas`` copies on other nodes, in other fault zones where possible:
    ``zone`` gives the zone of an executor from its host and id, by default its ``MILLSTREAM_ZONE``
    or its host. A node that answers no ping for ``node_timeout`` is declared dead. A ``policy``
    ("ring", "bottleneck", "latency", or one of ``ms.policy``) changes nodes and slots by load,
    within ``min_nodes`` and ``max_nodes`` (by default as many as there are cores); with ``dry_run``
    it only reports what it would do, and ``cooldown`` is how long it waits. ``every`` is the
    shortest time between two epochs of unbounded input. Spark plans the next
    epoch while one is committed, which makes small epochs shorter; with ``overlap=0`` it does so
    afterwards, and always if a source forgets what it has handed out (``socket``, ``dataframe``,
    files with ``cleanSource``). With a ``memory_limit`` (bytes, or text such as
    ``"512MB"``) a node whose keys take more than that in memory moves the least recently used to
    its local disk; jobs with built-in aggregates or Arrow reducers do not. ``listen`` is the
    address on which coordinator and nodes accept connections from other hosts; without it they use
    Unix sockets. Connections between hosts are encrypted with a certificate of the run (extra
    ``tls``), unless ``encrypt=False``. ``progress`` shows progress on the terminal (by default if
    there is one). The HTTP API, behind dashboard and commands, listens on the loopback interface
    if its packages are installed (extra ``dashboard``); ``dashboard`` is False for none, or an
    address such as ``"127.0.0.1:8080"``.

    With ``checkpoint`` (a folder) state and outputs survive the loss of all processes: a run that
    is started again there resumes from the last checkpoint, on any number of nodes. State is
    written to ``store``, by default a log in that folder. With ``durability="epoch"`` an epoch is
    in the store, and replicated to peers, before it commits; with ``"interval"`` its input is
    replicated, and its changes follow every ``checkpoint_every`` or ``checkpoint_changes`` keys,
    whichever comes first, and only then its outputs; if the store falls behind, ``when_full``
    chooses whether to ``block`` or to ``replace`` queued changes. ``recovery="lazy"`` begins before
    all state is restored. ``restore_epoch`` resumes from one of the ``retain`` newest epochs, and
    ``changes`` declares how jobs have changed since. ``on_checkpoint`` is called with the result of
    every checkpoint.
    """
    return _start(workflow, config)


def _start(workflow: Workflow, config: RunConfig) -> Run:
    planned = plan(workflow)
    with contextlib.ExitStack() as cleanup:
        spark = config.spark or _session_of_sources(planned)
        if spark is None:
            spark = acquire(config.master)
            cleanup.callback(release, spark)
        return Startup(planned, config, spark, cleanup.pop_all()).run()


@with_options(RunConfig)
def run(workflow: Workflow, config: RunConfig) -> Summary:
    """Run a workflow until its bounded input is consumed, or until Ctrl-C; options as ``start``.

    >>> flow = ms.Workflow("lengths")
    >>> words = flow.source("words", ms.read.replay([{"word": "mill"}, {"word": "stream"}]))
    >>> lengths = words.key_by(len).reduce("lengths", ms.count())
    >>> lengths.sink("out", ms.write.callback(lambda rows, epoch: print(sorted(rows))))
    >>> summary = ms.run(flow, nodes=2)
    [Row(key=4, value=1), Row(key=6, value=1)]
    """
    handle = _start(workflow, config)
    with handle, _interruptible():
        try:
            handle.await_termination()
        except KeyboardInterrupt:
            handle.stop()
    return Summary(workflow.name, handle.progress.totals, handle.progress.last)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C only raise: Spark's own handler would also cancel the epoch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _session_of_sources(planned: Plan) -> SparkSession | None:
    for _, vertex in planned.of_kind(SourceVertex):
        if isinstance(vertex.source, DataFrameSource):
            return vertex.source.frame.sparkSession  # type: ignore[attr-defined, no-any-return]
    return None
