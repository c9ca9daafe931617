"""One start of a driver on a checkpoint: it claims, restores, runs epochs, and ends or crashes.

What ``millstream.spark`` does with Spark, this does with Spark's offset and commit logs alone; all
decisions are made by the code of production.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from millstream.checkpoints.evolution import Changes
from millstream.checkpoints.manifest import JobMetadata, Staged, WorkflowMetadata
from millstream.coordinator.claim import Claimed, Recovery, claim
from millstream.coordinator.epochs import run_epoch
from millstream.coordinator.interval_commits import Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.service import Coordinator
from millstream.coordinator.sink_recovery import reconcile_sinks
from millstream.errors import MillstreamError
from millstream.flow.identity import form_of, reducer_text
from millstream.node.durability.base_writer import BaseOptions
from millstream.node.durability.write_queue import WriteQueueOptions
from millstream.sim.checks import Checks, ViolationError
from millstream.sim.cluster import Cluster, Durable, Size
from millstream.sim.disk import Disk
from millstream.sim.fault_injector import FaultInjector
from millstream.sim.network import World
from millstream.sim.reader import Reader, read_all
from millstream.sim.sink_models import FileSink
from millstream.sim.slowness import Slowness
from millstream.sim.spark import Shape, SparkBody, SparkFaults
from millstream.sim.spark_log_model import Cut, SimQueryLogs
from millstream.sim.store import SimStore
from millstream.sim.workload import SECOND, Answer, Moment, Pair, Workload, split
from millstream.times import BEGINNING, END

_RETAINED_INCARNATIONS = 3
_POLL = 0.01


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """How a workflow runs on its checkpoint, with any driver."""

    shape: Shape
    spark_faults: SparkFaults
    retain: int
    garbage_every: int
    recovery: Recovery
    triggers: Triggers
    queue: WriteQueueOptions
    bases: BaseOptions
    changes: float
    overlap: bool = False


@dataclass(frozen=True)
class Place:
    """What survives the drivers."""

    world: World
    store: SimStore
    logs: SimQueryLogs
    disk: Disk
    workload: Workload
    records: list[Pair]
    options: DriverOptions
    injector: FaultInjector
    slowness: Slowness
    reads: float | None


class Driver:
    """A driver process with its nodes."""

    def __init__(
        self,
        place: Place,
        number: int,
        size: Size,
        earlier: Mapping[int, Driver],
        restore: int | None = None,
    ) -> None:
        """``earlier`` are the drivers so far, by the incarnation that they claimed.

        ``restore`` is an epoch to rewind to.
        """
        self.name = f"driver-{number}"
        self.size = size
        self.restore = restore
        self.journal: Journal | None = None
        self.cluster: Cluster | None = None
        self.checks: Checks | None = None
        self.reference: Answer = place.workload.answer(size.slots)
        self.ends: list[int] = []  # of the epochs, as positions of the source
        self.is_over = False
        self.error: MillstreamError | None = None
        self._place = place
        self._number = number
        self._earlier = earlier
        self._net = place.world.process(self.name)
        self.sink = FileSink(place.disk, self._net)

    @property
    def is_exact(self) -> bool:
        """Whether it is known what comes out: all maps are deterministic."""
        return not self._place.options.spark_faults.flaky

    def start(self) -> None:
        """Begin in the background."""
        self._net.spawn(self._main, "main")

    def _main(self) -> None:
        world = self._place.world
        try:
            self._run()
        except MillstreamError as problem:
            world.note(f"{self.name} ends with {type(problem).__name__}: {problem}")
            self.error = problem
        if self.cluster is not None:
            self.cluster.coordinator.close()
        self.is_over = True
        world.at(0.0, lambda: world.crash(self.name))

    def _run(self) -> None:
        place, net = self._place, self._net
        options, store, sink = place.options, place.store.view(net), self.sink
        logs = place.logs.view(net)
        claimed = claim(
            store,
            "sim://",
            _note(place.workload, self.size.slots),
            Changes(),
            restore_epoch=self.restore,
            recovery=options.recovery,
            can_withdraw=False,
            require_logs=logs.require,
        )
        self._take_up(claimed)
        self.journal = Journal(
            store,
            claimed.lineage,
            claimed.workflow,
            place.workload.names,
            options.retain,
            garbage_every=options.garbage_every,
        )
        logs.derive(self.journal.incarnation, claimed.after, claimed.by)
        logs.prune(_RETAINED_INCARNATIONS)

        def publish(staged: Staged) -> None:
            if staged.sinks:
                sink.publish(staged.epoch, staged.attempt)

        reconcile_sinks([sink], claimed, self.journal, publish)
        durable = Durable(
            store=place.store,
            journal=self.journal,
            ids={place.workload.names[job.name]: job.id for job in claimed.workflow.jobs},
            triggers=options.triggers,
            queue=options.queue,
            bases=options.bases,
            publish=publish,
        )
        self.cluster = Cluster(
            place.world,
            self.size,
            net,
            f"d{self._number}n",
            durable,
            place.workload,
            place.slowness,
        )
        self.checks = Checks(self.cluster, self.reference)
        self.cluster.begin(options.shape.partitions)
        if options.recovery == "eager":
            self.cluster.coordinator.await_restored()
        if place.reads is not None and self.is_exact:
            reader = Reader(self.cluster, self.reference, lambda: self.is_over)
            net.spawn(partial(reader.read_always, place.reads), "reader")
        cuts = logs.query(self.journal.incarnation)
        for cut in self._one_ahead(cuts) if options.overlap else cuts:
            self._epoch(self.cluster, cut, sink)
        self.checks.await_copies(lambda: place.injector.until)
        if self.is_exact:
            self._examine(self.cluster)

    def _one_ahead(self, cuts: Iterator[Cut]) -> Iterator[Cut]:
        """Epochs that Spark hands over: it logs their commits, and plans the next, while they run.

        As in ``millstream.spark.engine`` with ``overlap``.
        """
        handed_over: list[Cut] = []  # until it has run
        ended: list[MillstreamError | None] = []

        def plan() -> None:
            problem = None
            try:
                for cut in cuts:
                    while handed_over:
                        self._net.sleep(_POLL)
                    handed_over.append(cut)
            except MillstreamError as found:
                problem = found
            ended.append(problem)

        self._net.spawn(plan, "query")
        while not ended or handed_over:
            if handed_over:
                yield handed_over[0]
                handed_over.clear()
            self._net.sleep(_POLL)
        if ended[0] is not None:
            raise ended[0]

    def _take_up(self, claimed: Claimed) -> None:
        """Copy the history of the epochs so far from the driver that committed them."""
        if claimed.by is not None:
            before = self._earlier[claimed.by]
            self.reference = before.reference.upto(claimed.after)
            self.ends = before.ends[: claimed.after + 1]
        if len(self.ends) != claimed.after + 1:
            raise ViolationError(f"I3: no driver has committed epoch {claimed.after}")

    def _epoch(self, cluster: Cluster, cut: Cut, sink: FileSink) -> None:
        """The callback for each epoch, as in ``millstream.spark.engine``."""
        place, shape = self._place, self._place.options.shape
        coordinator = cluster.coordinator
        if cut.epoch < len(self.ends):
            if (cut.start, cut.end) != (self._start_of(cut.epoch), self.ends[cut.epoch]):
                raise ViolationError(
                    f"I1: epoch {cut.epoch} is committed with another cut than {cut}"
                )
            if cut.epoch > coordinator.ledger.committed.epoch:
                raise ViolationError(f"I1: epoch {cut.epoch} came twice")
            return
        if cut.start != self._start_of(cut.epoch):
            raise ViolationError(f"I1: {cut} does not follow the epoch before")
        given = split(place.records[cut.start : cut.end], shape.tasks)
        moment = self._moment(coordinator, cut)
        self.reference.add(given, moment)
        self.ends.append(cut.end)
        if place.world.maybe(place.options.changes):
            cluster.change()
        body = SparkBody(
            place.world,
            self._net,
            cluster.hosts,
            shape,
            place.options.spark_faults,
            given,
            sink,
            place.workload,
        )
        result = run_epoch(coordinator, cut.epoch, moment.now, body)
        if self.checks is not None and self.is_exact:
            self.checks.counts(result)
        place.world.note(f"{self.name} has committed epoch {cut.epoch}")
        self._net.sleep(place.world.random.choice((0.0, 0.2, 3.0)))

    def _moment(self, coordinator: Coordinator, cut: Cut) -> Moment:
        """The clock, which may be put back; at the end of the source, perhaps the end of time."""
        world, asked = self._place.world, BEGINNING
        now = round(world.now * SECOND) - world.random.choice((0, 0, 0, 5)) * SECOND
        if cut.end == len(self._place.records) and world.maybe(0.3):
            asked = END
            coordinator.advance(asked)
        return Moment(now, coordinator.ledger.incarnation, asked)

    def _start_of(self, epoch: int) -> int:
        return self.ends[epoch - 1] if epoch else 0

    def _examine(self, cluster: Cluster) -> None:
        """Compare the state as users read it with the answer."""
        for job in cluster.workload.jobs:
            items = read_all(cluster.coordinator, job)
            found = {key: cluster.workload.comparable(state) for key, state in items}
            expected = self.reference.state(len(self.ends) - 1, job)
            if found != expected:
                raise ViolationError(f"I1: job {job} ends with {found}, not {expected}")


def _note(workload: Workload, slots: int) -> WorkflowMetadata:
    jobs = tuple(
        JobMetadata(job.name, form_of(job), reducer_text(job)) for job in workload.jobs.values()
    )
    return WorkflowMetadata("simulated", slots, jobs)


def resized(size: Size, **changes: object) -> Size:
    """The cluster of the next driver."""
    return replace(size, **changes)  # type: ignore[arg-type]
