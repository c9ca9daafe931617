"""The steps from a plan to a running query."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.checkpoints.spark_logs import MIN_RETAINED
from millstream.coordinator.autoscaler import Autoscaler
from millstream.coordinator.failure_evidence import Patience
from millstream.coordinator.interval_commits import Triggers
from millstream.coordinator.journal import CheckpointResult
from millstream.coordinator.scaling import Member
from millstream.coordinator.server import CoordinatorServer
from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_reader import StateReader
from millstream.elastic.built_in import policy_of
from millstream.elastic.policy import ManualPolicy
from millstream.errors import ConfigError
from millstream.flow.function_shipping import ship
from millstream.flow.plan import Plan
from millstream.flow.sources import FilesSource, ReplaySource
from millstream.flow.time_origins import timings_of
from millstream.flow.vertices import SourceVertex
from millstream.log_context import DRIVER, LogContext
from millstream.node.durability.write_queue import WriteQueueOptions
from millstream.node.process import Launch
from millstream.node.service import NodeOptions
from millstream.observe.display import display_for
from millstream.observe.history import RunHistory
from millstream.observe.progress import Progress
from millstream.observe.tracing import Tracing
from millstream.ring.ring import NodeId
from millstream.spark.backlog import Backlog, BacklogWatch, backlog_of
from millstream.spark.bounded_input import ending_of
from millstream.spark.checkpoint import RunCheckpoint, claim_checkpoint
from millstream.spark.compile import EpochFrames, admission
from millstream.spark.dashboard_option import address_of
from millstream.spark.engine import Engine, publish
from millstream.spark.file_scans import FileScans
from millstream.spark.gateway import Gateway, SparkLostError
from millstream.spark.handle import Run
from millstream.spark.local_logs import quick_local_logs
from millstream.spark.node_launch import NodeTemplate, start_nodes
from millstream.spark.node_pool import pool_of
from millstream.spark.options import RunConfig
from millstream.spark.program_broadcast import shipped
from millstream.spark.session import await_executors, log_of, same_host
from millstream.spark.sink_writers import open_sink
from millstream.wire.auth import new_secret
from millstream.wire.calls import Endpoint
from millstream.wire.epoch_record import JobTypes
from millstream.wire.flight_net import FlightNet
from millstream.wire.hosts import check_reachable
from millstream.wire.run_registry import Registration
from millstream.wire.serving import tcp_address
from millstream.wire.tls import Identity, new_identity
from millstream.work.operators import is_keyed
from millstream.work.program import pack, program_of

_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_SPARE = 10
_LONGEST = 80  # of a folder, so that the path of a socket in it is accepted


class Startup:
    """Starts a run, step by step."""

    def __init__(
        self, planned: Plan, config: RunConfig, spark: SparkSession, cleanup: contextlib.ExitStack
    ) -> None:
        self._plan = planned
        self._config = config
        self._spark = spark
        self._cleanup = cleanup
        self._checkpoint = RunCheckpoint("")
        self._figures: RunHistory | None = None
        self._coordinator: Coordinator | None = None
        self._log_context = LogContext(workflow=planned.name, node=DRIVER, epoch=self._epoch)
        self._log_context.open()
        folder = config.checkpoint
        self._gateway = Gateway(spark.sparkContext, None if folder is None else os.fspath(folder))
        atexit.register(cleanup.close)
        cleanup.callback(atexit.unregister, cleanup.close)
        cleanup.callback(self._log_context.close)

    def run(self) -> Run:
        """Start the query; if that fails, undo what was started."""
        try:
            with self._log_context.entered():
                return self._run()
        except BaseException as problem:
            better = self._checkpoint.successor(problem) or self._lost(problem)
            self._cleanup.close()
            if better is None:
                raise
            raise better from problem

    def _epoch(self) -> int:
        return -1 if self._coordinator is None else self._coordinator.log_context.epoch()

    def _lost(self, problem: BaseException) -> SparkLostError | None:
        return self._gateway.loss() if isinstance(problem, Exception) else None

    def _run(self) -> Run:
        spark, planned = self._spark, self._plan
        config = replace(self._config, on_checkpoint=self._checkpointed)
        folder = _socket_folder()
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        self._check_hosts()
        self._check_memory_limit()
        self._check_cleaned_files()
        cores = await_executors(spark)
        program = program_of(planned, config.slots)
        bounded = all(vertex.source.bounded for _, vertex in planned.of_kind(SourceVertex))
        timings = timings_of(planned)
        windows = bool(timings)
        admitted = admission(spark, planned, windows or (not bounded and self._has_ttl()))
        sinks = {at: open_sink(spark, vertex.sink) for at, vertex in planned.sinks}
        named = {vertex.name: sinks[at] for at, vertex in planned.sinks}
        self._checkpoint = checkpoint = claim_checkpoint(
            planned, config, spark, admitted.frame, named, self._cleanup
        )
        most = config.max_nodes or max(cores, config.nodes or 1)
        before = checkpoint.nodes and min(max(checkpoint.nodes, config.min_nodes), most)
        nodes = config.nodes or before or min(max(cores, config.min_nodes), most, config.slots)
        identity = new_identity() if config.encrypted else None
        coordinator, endpoint = self._serve_coordinator(folder, identity)
        self._coordinator = coordinator
        launch = Launch(
            NodeId(""),
            endpoint,
            ship(program.jobs),
            config.slots,
            folder,
            None,
            config.durability,
            NodeOptions(replicate_every=config.checkpoint_every.total_seconds()),
            checkpoint.url,
            checkpoint.ids or {},
            WriteQueueOptions(when_full=config.when_full),
            config.memory_bytes,
            identity,
            workflow=planned.name,
        )
        template = NodeTemplate.of(launch, listen=config.listen is not None, zone=config.zone)
        started = start_nodes(spark.sparkContext, template, nodes, cores=cores)
        progress = Progress()
        display = display_for(planned.name, config.progress)
        progress.listen(display.show)
        self._figures = figures = RunHistory(coordinator.load.newest)
        progress.listen(figures.add)
        tracing = Tracing(planned.name)
        coordinator.events.listen(tracing.add_event)
        policy = policy_of(config.policy)
        packed = shipped(spark.sparkContext, pack(program), self._cleanup)
        frames = EpochFrames(planned, program, packed, endpoint, admitted.branches)
        engine = Engine(
            planned,
            frames,
            FileScans(spark, planned, admitted.schemas, admitted.branches),
            coordinator,
            sinks,
            progress,
            successor=checkpoint.successor,
            spark_lost=self._gateway.loss,
            log=log_of(spark),
            overlap=config.overlap > 0
            and not any(vertex.source.forgets for _, vertex in planned.of_kind(SourceVertex)),
            tracing=tracing,
        )
        self._cleanup.callback(engine.close)
        coordinator.begin(
            [Member(node.node, node.address, node.domain, node.pid) for node in started],
            {at: job.name for at, job in planned.jobs},
            {at: JobTypes(job.key_type, job.output) for at, job in planned.jobs},
            config.slots,
            config.replicas,
            logs=config.durability == "interval",
            on_lost=engine.give_up,
            journal=checkpoint.journal,
            triggers=Triggers(
                seconds=config.checkpoint_every.total_seconds(),
                changes=config.checkpoint_changes,
                when_full=config.when_full,
            ),
            publish=partial(publish, sinks=named),
            timings=timings,
            downstream=planned.downstream,
            autoscaler=Autoscaler(
                policy,
                min_nodes=config.min_nodes,
                max_nodes=max(most, nodes),
                cooldown=config.cooldown,
                dry_run=config.dry_run,
            ),
            partitions=config.partitions or cores,
        )
        if checkpoint.journal is not None and config.recovery == "eager":
            coordinator.await_restored()
        stream = (
            admitted.frame.writeStream.queryName(f"{planned.name}-{uuid.uuid4().hex[:8]}")
            .foreachBatch(engine)
            .option("checkpointLocation", checkpoint.location)
        )
        paced = any(
            isinstance(vertex.source, ReplaySource) and vertex.source.paced
            for _, vertex in planned.of_kind(SourceVertex)
        )
        if bounded and not paced and not windows:
            stream = stream.trigger(availableNow=True)
        else:
            stream = stream.trigger(processingTime=f"{config.every.total_seconds():.3f} seconds")
        with self._retaining(), quick_local_logs(spark):
            query = stream.start()
        engine.query = query
        if engine.error is not None or coordinator.state_lost is not None:  # before it was set
            engine.give_up()
        self._cleanup.callback(_end_query, query)
        if bounded and (paced or windows):
            ending = ending_of(planned, admitted.branches, windows)
            threading.Thread(
                target=ending.stop_when_read, args=(query, engine), daemon=True
            ).start()
        pool = pool_of(
            coordinator,
            spark.sparkContext,
            template,
            standby=config.standby,
            replace_after=config.replace_after,
        )
        self._cleanup.callback(pool.close)
        pool.start()
        backlog = backlog_of(spark, query, planned, admitted, checkpoint.location)
        if not isinstance(policy, ManualPolicy):
            watch = BacklogWatch(backlog, coordinator.load.report_backlog)
            self._cleanup.callback(watch.close)
            watch.start()
        run = Run(
            planned,
            coordinator,
            engine,
            query,
            progress,
            display,
            self._cleanup,
            self._gateway,
            spark,
            backlog,
        )
        self._serve(run, coordinator, figures, backlog)
        return run

    def _serve(
        self,
        run: Run,
        coordinator: Coordinator,
        figures: RunHistory,
        backlog: Backlog,
    ) -> None:
        """Let the user's commands, and the dashboard, reach the run."""
        address = address_of(self._config.dashboard)
        if address is None:
            self._cleanup.callback(Registration(self._plan.name).remove)
            return
        # The packages of the extra are imported while the first epoch runs.
        from millstream.api.live_run import LiveRun
        from millstream.api.run_api import RunApi

        live = LiveRun(
            self._plan,
            coordinator,
            run.progress,
            figures,
            StateReader(coordinator, self._gateway.explaining),
            phase=run.phase,
            stop=run.stop,
            backlog=backlog,
        )
        api = RunApi(live, address, version=version("millstream"))
        registration = Registration(self._plan.name, api.access())
        self._cleanup.callback(registration.remove)
        self._cleanup.callback(api.close)
        api.start(registration.renew)
        run.dashboard = api

    def _checkpointed(self, result: CheckpointResult) -> None:
        if self._figures is not None:
            self._figures.add_checkpoint(result)
        if self._config.on_checkpoint is not None:
            self._config.on_checkpoint(result)

    @contextlib.contextmanager
    def _retaining(self) -> Iterator[None]:
        """Have Spark retain as many epochs as we do; a query reads the setting when it starts."""
        before = int(self._spark.conf.get(_RETAINED, str(MIN_RETAINED)) or MIN_RETAINED)
        self._spark.conf.set(_RETAINED, str(max(before, self._config.retain + _SPARE)))
        try:
            yield
        finally:
            self._spark.conf.set(_RETAINED, str(before))

    def _check_hosts(self) -> None:
        if self._config.listen is not None:
            check_reachable(self._config.listen)
        elif not same_host(self._spark):
            raise ConfigError(
                f"Spark's master is {self._spark.sparkContext.master}, whose executors may be on "
                "other hosts; pass listen= with the driver's address that they can reach"
            )

    def _check_memory_limit(self) -> None:
        if self._config.memory_limit is not None and not any(
            is_keyed(job) for _, job in self._plan.jobs
        ):
            raise ConfigError(
                "memory_limit has no effect here: it applies to jobs whose reduce is a Python "
                "function or combinable, while built-in aggregates and Arrow reducers have their "
                "columns in memory; leave it out, or reduce with a function"
            )

    def _check_cleaned_files(self) -> None:
        """Reject the removal of files while only memory has what was read from them."""
        config = self._config
        if config.checkpoint is None or config.durability != "interval":
            return
        for _, vertex in self._plan.of_kind(SourceVertex):
            if isinstance(vertex.source, FilesSource) and vertex.source.forgets:
                raise ConfigError(
                    f"source {vertex.name!r} has cleanSource, with which Spark removes the files "
                    'of an epoch as soon as it has run; with durability="interval" a restart reads '
                    'them again, so use durability="epoch", or leave cleanSource out'
                )

    def _has_ttl(self) -> bool:
        return any(job.ttl is not None for _, job in self._plan.jobs)

    def _serve_coordinator(
        self, folder: str, identity: Identity | None
    ) -> tuple[Coordinator, Endpoint]:
        address = f"grpc+unix://{folder}/coordinator.sock"
        if self._config.listen is not None:
            address = tcp_address(self._config.listen, identity)
        secret = new_secret()
        patience = Patience(silence=self._config.node_timeout.total_seconds())
        net = FlightNet(secret, None if identity is None else identity.certificate)
        coordinator = Coordinator(net, patience, workflow=self._plan.name)
        try:
            server = CoordinatorServer(address, secret, coordinator, identity)
        except pa.ArrowException as problem:  # without a reason; gRPC has logged it
            raise ConfigError(
                f"the driver cannot listen on {address}; pass listen= with a name or address of "
                "the driver's own host"
            ) from problem
        self._cleanup.callback(server.shutdown)
        self._cleanup.callback(coordinator.close)
        return coordinator, server.endpoint


def _socket_folder() -> str:
    """A new folder for sockets, whose paths must be short: a system allows about 100 bytes."""
    folder = tempfile.mkdtemp(prefix="millstream-")
    if len(folder) <= _LONGEST:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="millstream-", dir="/tmp")


def _end_query(query: StreamingQuery) -> None:
    with contextlib.suppress(Exception):
        query.stop()
