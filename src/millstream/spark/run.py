"""Running a workflow: ``start`` returns a handle, ``run`` blocks until the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.coordinator.record import JobTypes
from millstream.coordinator.server import CoordinatorServer
from millstream.coordinator.service import Coordinator, Member
from millstream.coordinator.suspicions import Patience
from millstream.errors import ConfigError, MillstreamError
from millstream.flow.plan import Plan, plan
from millstream.flow.shipping import ship
from millstream.flow.sources import DataFrameSource, ReplaySource
from millstream.flow.workflow import SourceVertex, Workflow
from millstream.node.machine import Durability
from millstream.node.process import Launch
from millstream.node.service import NodeOptions
from millstream.observe.display import display_for
from millstream.observe.progress import EpochProgress, Progress, Totals
from millstream.ring.ring import NodeId
from millstream.spark.compile import EpochFrames, admission
from millstream.spark.engine import Engine
from millstream.spark.folder import Folder
from millstream.spark.handle import Run
from millstream.spark.launch import ZoneFunction, start_nodes
from millstream.spark.replay import ReplayEnd, replay_end
from millstream.spark.session import acquire, await_executors, release, same_host
from millstream.spark.sinks import FileWriter, open_sink
from millstream.wire.auth import new_secret
from millstream.wire.calls import Endpoint
from millstream.wire.flight_net import FlightNet
from millstream.work.program import pack, program_of

_POLL = 0.1
_SHORTEST = timedelta(seconds=0.1)
_COUNTS = (
    ("nodes", 1, 4096),
    ("partitions", 1, 65536),
    ("slots", 1, 65536),
    ("replicas", 0, 16),
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run."""

    checkpoint: str | None = None
    nodes: int | None = None
    master: str | None = None
    partitions: int | None = None
    slots: int = 4096
    replicas: int = 1
    durability: Durability = "epoch"
    checkpoint_every: timedelta = timedelta(seconds=2)
    node_timeout: timedelta = timedelta(seconds=10)
    zone: ZoneFunction | None = None
    every: timedelta = timedelta(0)
    listen: str | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, low, high in _COUNTS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(
                    f"{name} must be a whole number from {low} to {high}, got {value!r}"
                )
        if self.nodes is not None and self.nodes > self.slots:
            raise ConfigError(f"nodes must be at most slots ({self.slots}), got {self.nodes}")
        if self.listen is not None and (
            not isinstance(self.listen, str)
            or not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+]", self.listen)
            or self.listen == "0.0.0.0"
        ):
            raise ConfigError(
                "listen must be a host name or address of the driver that executors can reach, "
                f"without a port, got {self.listen!r}"
            )
        if not isinstance(self.every, timedelta) or self.every < timedelta(0):
            raise ConfigError(f"every must be a timedelta of 0 or more, got {self.every!r}")
        for name in ("checkpoint_every", "node_timeout"):
            length = getattr(self, name)
            if not isinstance(length, timedelta) or length < _SHORTEST:
                raise ConfigError(f"{name} must be a timedelta of 0.1 s or more, got {length!r}")
        if self.durability not in ("epoch", "interval"):
            raise ConfigError(f"durability must be 'epoch' or 'interval', got {self.durability!r}")
        if self.zone is not None and not callable(self.zone):
            raise ConfigError(
                "zone must be a function of an executor's host and id that gives its fault zone, "
                f"got {self.zone!r}"
            )


class CheckpointInUse(MillstreamError):
    """The checkpoint folder holds epochs of an earlier run, whose state is gone."""

    def __init__(self, path: str, epochs: int) -> None:
        super().__init__(path, epochs)
        self.path, self.epochs = path, epochs

    def __str__(self) -> str:
        return (
            f"{self.path} holds {self.epochs} committed epochs of an earlier run. State lives in "
            "the nodes' memory in this version and ended with that run, so going on from there "
            "would give wrong results: choose a new checkpoint folder, or remove this one and "
            "the sinks' folders"
        )


@dataclass(frozen=True)
class Summary:
    """What a finished run did."""

    workflow: str
    totals: Totals
    last: EpochProgress | None


def start(
    workflow: Workflow,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    nodes: int | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    partitions: int | None = None,
    slots: int = 4096,
    replicas: int = 1,
    durability: Durability = "epoch",
    checkpoint_every: timedelta = timedelta(seconds=2),
    node_timeout: timedelta = timedelta(seconds=10),
    zone: ZoneFunction | None = None,
    every: timedelta = timedelta(0),
    listen: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Start a workflow and return its handle.

    ``nodes`` defaults to one per executor core, ``partitions`` (of each shuffle) to the larger
    of cores and nodes. Every slot has ``replicas`` copies on other nodes, in other fault zones
    where possible: ``zone`` gives the zone of an executor from its host and id, by default its
    ``MILLSTREAM_ZONE`` or its host. With ``durability="epoch"`` the changes of an epoch are copied
    before it commits; with ``"interval"`` the input is copied, and the changes follow every
    ``checkpoint_every``. A node that is silent for ``node_timeout`` is taken for dead.
    ``every`` is the shortest time between two epochs of unbounded input.
    ``listen`` is the address on which coordinator and nodes accept connections from other
    hosts; without it they use Unix sockets. ``progress`` shows progress on the terminal (by
    default if there is one).
    """
    config = RunConfig(
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        nodes=nodes,
        master=master,
        partitions=partitions,
        slots=slots,
        replicas=replicas,
        durability=durability,
        checkpoint_every=checkpoint_every,
        node_timeout=node_timeout,
        zone=zone,
        every=every,
        listen=listen,
        progress=progress,
    )
    planned = plan(workflow)
    with contextlib.ExitStack() as cleanup:
        if spark is None:
            spark = _session_of_sources(planned)
        if spark is None:
            spark = acquire(config.master)
            cleanup.callback(release, spark)
        run = _start(planned, config, spark, cleanup.pop_all())
    return run


def run(
    workflow: Workflow,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    nodes: int | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    partitions: int | None = None,
    slots: int = 4096,
    replicas: int = 1,
    durability: Durability = "epoch",
    checkpoint_every: timedelta = timedelta(seconds=2),
    node_timeout: timedelta = timedelta(seconds=10),
    zone: ZoneFunction | None = None,
    every: timedelta = timedelta(0),
    listen: str | None = None,
    progress: bool | None = None,
) -> Summary:
    """Run a workflow until its bounded input is consumed, or until Ctrl-C."""
    handle = start(
        workflow,
        checkpoint=checkpoint,
        nodes=nodes,
        spark=spark,
        master=master,
        partitions=partitions,
        slots=slots,
        replicas=replicas,
        durability=durability,
        checkpoint_every=checkpoint_every,
        node_timeout=node_timeout,
        zone=zone,
        every=every,
        listen=listen,
        progress=progress,
    )
    with handle, _interruptible():
        try:
            handle.await_termination()
        except KeyboardInterrupt:
            handle.stop()
    return Summary(workflow.name, handle.progress.totals, handle.progress.last)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise and do no more: Spark's own handler would also cancel the epoch."""
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


def _start(
    planned: Plan, config: RunConfig, spark: SparkSession, cleanup: contextlib.ExitStack
) -> Run:
    try:
        return _Starting(planned, config, spark, cleanup).run()
    except BaseException:
        cleanup.close()
        raise


class _Starting:
    """The steps from a plan to a running query."""

    def __init__(
        self, planned: Plan, config: RunConfig, spark: SparkSession, cleanup: contextlib.ExitStack
    ) -> None:
        self._plan = planned
        self._config = config
        self._spark = spark
        self._cleanup = cleanup
        atexit.register(cleanup.close)
        cleanup.callback(atexit.unregister, cleanup.close)

    def run(self) -> Run:
        spark, config, planned = self._spark, self._config, self._plan
        checkpoint = self._checkpoint()
        folder = tempfile.mkdtemp(prefix="millstream-")
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        self._check_hosts()
        cores = await_executors(spark)
        nodes = config.nodes or min(cores, config.slots)
        partitions = config.partitions or -(-max(cores, nodes) // nodes) * nodes
        program = program_of(planned, config.slots, min(partitions, config.slots))
        bounded = all(vertex.source.bounded for _, vertex in planned.of_kind(SourceVertex))
        admitted = admission(spark, planned, not bounded and self._has_ttl())
        # Nothing that an earlier run staged is committed: a run cannot be continued yet.
        sinks = {at: open_sink(spark, vertex.sink, keep=()) for at, vertex in planned.sinks}
        for writer in sinks.values():
            if isinstance(writer, FileWriter):
                writer.check_new()
        coordinator, endpoint = self._coordinator(folder)
        launch = Launch(
            NodeId(""),
            endpoint,
            ship(program.jobs),
            config.slots,
            folder,
            None,
            config.durability,
            NodeOptions(checkpoint_every=config.checkpoint_every.total_seconds()),
        )
        started = start_nodes(
            spark.sparkContext,
            launch,
            nodes,
            cores=cores,
            listen=config.listen is not None,
            zone=config.zone,
        )
        progress = Progress()
        display = display_for(planned.name, config.progress)
        progress.listen(display.show)
        frames = EpochFrames(planned, program, pack(program), endpoint, admitted.branches)
        engine = Engine(planned, frames, coordinator, sinks, progress)
        coordinator.begin(
            [Member(node.node, node.address, node.domain) for node in started],
            {at: job.name for at, job in planned.jobs},
            {at: JobTypes(job.key_type, job.output) for at, job in planned.jobs},
            config.slots,
            config.replicas,
            logs=config.durability == "interval",
            on_lost=engine.give_up,
        )
        stream = (
            admitted.frame.writeStream.queryName(f"{planned.name}-{uuid.uuid4().hex[:8]}")
            .foreachBatch(engine)
            .option("checkpointLocation", checkpoint)
        )
        paced = [
            vertex.source
            for _, vertex in planned.of_kind(SourceVertex)
            if isinstance(vertex.source, ReplaySource) and vertex.source.paced
        ]
        if bounded and not paced:
            stream = stream.trigger(availableNow=True)
        else:
            stream = stream.trigger(processingTime=f"{config.every.total_seconds():.3f} seconds")
        query = stream.start()
        engine.query = query
        if coordinator.lost is not None:  # before there was a query to end
            engine.give_up()
        self._cleanup.callback(_end_query, query)
        if bounded and paced:
            sources = [planned.vertices[at] for at in _sources_of(planned, admitted.branches)]
            ends = [
                replay_end(vertex.source)
                if isinstance(vertex, SourceVertex) and isinstance(vertex.source, ReplaySource)
                else None
                for vertex in sources
            ]
            threading.Thread(target=_stop_at_end, args=(query, engine, ends), daemon=True).start()
        pids = {node.node: node.pid for node in started}
        return Run(planned, coordinator, pids, engine, query, progress, display, self._cleanup)

    def _checkpoint(self) -> str:
        if self._config.checkpoint is None:
            folder = tempfile.mkdtemp(prefix="millstream-checkpoint-")
            self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            return folder
        commits = Folder(self._spark, f"{self._config.checkpoint}/spark/commits")
        done = [name for name in commits.names("") if name.isdigit()]
        if done:
            raise CheckpointInUse(self._config.checkpoint, len(done))
        return f"{self._config.checkpoint}/spark"

    def _check_hosts(self) -> None:
        if self._config.listen is None and not same_host(self._spark):
            raise ConfigError(
                f"Spark's master is {self._spark.sparkContext.master}, whose executors may be on "
                "other hosts; pass listen= with the driver's address that they can reach"
            )

    def _has_ttl(self) -> bool:
        return any(job.ttl is not None for _, job in self._plan.jobs)

    def _coordinator(self, folder: str) -> tuple[Coordinator, Endpoint]:
        address = f"grpc+unix://{folder}/coordinator.sock"
        if self._config.listen is not None:
            address = f"grpc://{self._config.listen}:0"
        secret = new_secret()
        patience = Patience(silence=self._config.node_timeout.total_seconds())
        coordinator = Coordinator(FlightNet(secret), patience)
        server = CoordinatorServer(address, secret, coordinator)
        self._cleanup.callback(server.shutdown)
        self._cleanup.callback(coordinator.close)
        return coordinator, server.endpoint


def _end_query(query: StreamingQuery) -> None:
    with contextlib.suppress(Exception):
        query.stop()


def _sources_of(planned: Plan, branches: Iterable[int]) -> list[int]:
    """The sources behind the branches, in the order in which Spark lists them."""
    found: list[int] = []
    for branch in branches:
        at = branch
        while planned.inputs[at]:
            at = planned.inputs[at][0]
        if at not in found:
            found.append(at)
    return found


def _stop_at_end(query: StreamingQuery, engine: Engine, ends: list[ReplayEnd | None]) -> None:
    """End a run of recordings: each at its end, and nothing else left to read."""
    while query.isActive:
        last = query.lastProgress
        if last is not None and len(last.sources) == len(ends):
            pairs = zip(ends, last.sources, strict=True)
            read = all(end is None or end.reached(source.endOffset) for end, source in pairs)
            if read and not query.status["isDataAvailable"]:
                engine.stop(query)
                return
        time.sleep(_POLL)
