"""One simulated run on a checkpoint, from one seed: drivers crash, are replaced and resume later.

The adversary hits nodes and drivers at any step, and takes the store away for a while; an
operator starts a new driver, with other nodes, when the last one ended or seems to hang. With
``durability="epoch"`` no number of nodes is too many to lose, as long as one is left.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.checkpoints.chain import Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.lineage import Lineage, lineage_of
from millstream.checkpoints.manifest import Claim, Manifest
from millstream.checkpoints.stored_state import StoredState
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.sink_layout import SinkBusyError
from millstream.errors import MillstreamError
from millstream.flow.vertices import JobVertex
from millstream.ring.masks import mask_of
from millstream.sim.checks import ViolationError
from millstream.sim.disk import Disk
from millstream.sim.driver import Driver, Place, resized
from millstream.sim.durable_scenario import DurableScenario
from millstream.sim.fault_injector import FaultInjector
from millstream.sim.network import World
from millstream.sim.sink_models import SinkReader, with_rows
from millstream.sim.spark_log_model import OffsetsMissingError, SimQueryLogs
from millstream.sim.store import SimStore
from millstream.sim.workload import Outputs, Workload
from millstream.sim.workloads import workload_of
from millstream.stores.store import CorruptRecordError, StoreError
from millstream.wire.feed import NotDeterministicError
from millstream.work.operators import operator_for

OPERATOR = "operator"
_POLL = 0.25
_MOMENTS = ("store", "sink", "logs")


@dataclass
class DurableRun:
    """A run, its drivers and its adversary."""

    world: World
    scenario: DurableScenario
    drivers: list[Driver] = field(default_factory=list)
    node_faults: int = 0
    deaths: int = 0
    restores: int = 0
    fulls: int = 0

    def __post_init__(self) -> None:
        world, scenario = self.world, self.scenario
        workload = workload_of(scenario.workload)
        self._injector = FaultInjector(world)
        source = workload.stream(random.Random(f"input {scenario.seed}"), scenario.records)
        self._place = Place(
            world,
            SimStore(world, scenario.lose),
            SimQueryLogs(world, scenario.records),
            Disk(world),
            workload,
            source,
            scenario.options,
            self._injector,
            scenario.slowness,
            scenario.reads,
        )
        self._reader = SinkReader(self._place.disk, self._committed, self._is_current)
        self._operator = world.process(OPERATOR)
        self._by_incarnation: dict[int, Driver] = {}
        self._cut_off_once: set[str] = set()
        self._ended: set[str] = set()
        self._hanging = False
        self._calm = self._over = False

    @property
    def lost_nodes(self) -> int:
        """The number of nodes that were declared dead."""
        clusters = [driver.cluster for driver in self.drivers if driver.cluster is not None]
        coordinators = [cluster.coordinator for cluster in clusters]
        return sum(len(each.roster.dead_nodes) for each in coordinators if each.has_begun)

    def go(self, until: float) -> None:
        """Run until every record is committed and visible, and all drivers have ended."""
        self.world.on_step = self._step
        self.scenario.slowness.begin(self.world, self._healthy)
        self.world.run(self._main, OPERATOR, until)

    # -- the operator --------------------------------------------------------------------

    def _main(self) -> None:
        random_ = self.world.random
        while not self._over:
            while not self._is_done() or self._may_go_back():
                driver = self._launch()
                while self.world.alive(driver.name) and not self._hanging:
                    self._operator.sleep(_POLL)
                self._hanging = False
                self._operator.sleep(random_.choice((0.0, 0.0, 1.0, 5.0)))
            self._calm = True
            while any(map(self.world.alive, self._all_names())) or self._place.store.is_busy:
                self._operator.sleep(_POLL)
            self._over = self._is_done()  # a claim of a dead driver may have arrived late
        self._examine()

    def _all_names(self) -> list[str]:
        return [driver.name for driver in self.drivers]

    def _launch(self) -> Driver:
        random_, size = self.world.random, self.scenario.size
        if self.drivers and self.world.maybe(0.5):
            nodes = random_.randint(1, size.nodes + 1)
            size = resized(size, nodes=nodes, executors=random_.randint(1, nodes))
        if self.scenario.mixed:
            size = resized(size, durability=random_.choice(("epoch", "interval")))
        restore = self._choose_epoch() if self.world.maybe(0.5) or self._is_done() else None
        driver = Driver(self._place, len(self.drivers), size, self._by_incarnation, restore)
        self.drivers.append(driver)
        driver.start()
        return driver

    def _may_go_back(self) -> bool:
        return self.restores < self.scenario.restores

    def _choose_epoch(self) -> int | None:
        """A retained epoch to rewind to; None if there is none, or enough rewinds were made."""
        retained = self._lineage().manifests[-self.scenario.options.retain :]
        if not retained or not self._may_go_back():
            return None
        self.restores += 1
        return self.world.random.choice(retained).epoch

    def _is_done(self) -> bool:
        """Whether the last record is committed and visible, and a driver ended without error."""
        newest = self._lineage().newest
        if newest is None:
            return False
        driver = self._by_incarnation[newest.incarnation]
        ended = any(driver.is_over and driver.error is None for driver in self.drivers)
        at_end = driver.ends[newest.epoch] == self.scenario.records
        return ended and at_end and self._expected_epochs() <= self._reader.visible.keys()

    def _lineage(self) -> Lineage:
        return lineage_of(self._place.store.truth.links)

    # -- what must hold ------------------------------------------------------------------

    def _step(self, process: str, what: str) -> None:
        for driver in self.drivers:
            if self.world.alive(driver.name):
                self._check(driver)
            if driver.error is not None and driver.name not in self._ended:
                self._ended.add(driver.name)
                self._check_end(driver, driver.error)
        self._reader.look()
        for problem in (self._place.store.truth.problem, self._reader.problem):
            if problem is not None:
                raise ViolationError(problem)
        self._strike(process, what)

    def _check(self, driver: Driver) -> None:
        if driver.journal is not None:
            lineage = driver.journal.lineage
            self._by_incarnation.setdefault(lineage.incarnation, driver)
            for link in (lineage.claim, lineage.newest):
                if link is not None and link.incarnation == driver.journal.incarnation:
                    self._place.store.truth.believes(link)
        if driver.checks is not None:
            driver.checks.step(self._injector.faulted, driver.is_exact)

    def _check_end(self, driver: Driver, error: Exception) -> None:
        """A driver may fail only for good reasons."""
        fenced = self._is_fenced(driver)
        if isinstance(error, SupersededError):  # perhaps before it had a journal
            if not self._has_successor(error.incarnation):
                raise ViolationError(f"I3: {driver.name} was not replaced: {error}")
        elif isinstance(error, StateLostError):
            if driver.name in self._cut_off_once:
                return
            if driver.size.durability == "epoch" and self._reachable(driver, set()):
                raise ViolationError(f"I4: the store has what {driver.name} lost: {error}")
            if driver.size.durability == "interval" and not self.scenario.may_lose_state:
                raise ViolationError(f"I4: {driver.name}: {error}")
        elif isinstance(error, NotDeterministicError):
            if driver.is_exact:
                raise ViolationError(f"L: {driver.name} gave up: {error}")
        elif driver.restore is not None and driver.journal is None:
            self._check_refusal(driver, error)
        elif isinstance(error, SinkBusyError):
            if self._place.disk.locked_by is None:
                raise ViolationError(f"L: {driver.name} gave up: {error}")
        elif not fenced and (
            isinstance(error, CorruptRecordError)
            or not isinstance(error, StoreError | CommitUnknownError)
        ):
            raise ViolationError(f"L: {driver.name} gave up: {type(error).__name__}: {error}")

    def _check_refusal(self, driver: Driver, error: Exception) -> None:
        """A rewind to a retained epoch is refused only if something has changed it."""
        if isinstance(error, StoreError | OffsetsMissingError) and not isinstance(
            error, CorruptRecordError
        ):
            return
        others = [other for other in self.drivers if other is not driver and not other.is_over]
        if driver is self.drivers[-1] and not others:
            raise ViolationError(f"L: {driver.name} cannot rewind to {driver.restore}: {error}")

    def _is_fenced(self, driver: Driver) -> bool:
        if driver.journal is None:
            return False
        return self._has_successor(driver.journal.incarnation)

    def _has_successor(self, incarnation: int) -> bool:
        links = self._place.store.truth.links
        return any(isinstance(link, Claim) and link.incarnation > incarnation for link in links)

    def _examine(self) -> None:
        """Compare what is durable and what is visible with the answer."""
        lineage = self._lineage()
        newest = lineage.newest
        assert newest is not None
        driver = self._by_incarnation[newest.incarnation]
        expected = self._expected_epochs()
        if set(self._reader.visible) != expected:
            raise ViolationError(f"I2: visible are {sorted(self._reader.visible)}, not {expected}")
        for epoch, outputs in self._reader.visible.items():
            rows = with_rows(driver.reference.outputs[epoch])
            if driver.is_exact and outputs != rows:
                raise ViolationError(f"I2: epoch {epoch} is visible as {outputs}, not {rows}")
        store = self._place.store
        stored = Chain(store).read(on_damage=lambda _: None)
        states: dict[int, dict[str, Any]] = {}
        for at, job in self._place.workload.jobs.items():
            try:
                state = StoredState(store, stored, newest.epoch, job.name)
                found = _stored(self._place.workload, state, job)
            except MillstreamError as problem:
                raise ViolationError(f"I1: job {at} cannot be read: {problem}") from problem
            states[at] = found
            expected_state = driver.reference.state(newest.epoch, at)
            if driver.is_exact and found != expected_state:
                raise ViolationError(f"I1: job {at} is stored as {found}, not {expected_state}")
        if wrong := self._place.workload.disagreement(self._published(), states.__getitem__):
            raise ViolationError(f"I2: {wrong}")

    def _published(self) -> list[Outputs | None]:
        """The visible rows of each epoch; None where the sink has read a part of it only."""
        vertices = self._place.workload.sinks
        found: list[Outputs | None] = []
        for link in self._lineage().manifests:
            sink = self._by_incarnation[link.incarnation].sink
            for one in link.staged:
                visible = self._reader.visible.get(one.epoch, {})
                is_read = (one.epoch, one.attempt) in sink.staged
                found.append({at: visible.get(at, []) for at in vertices} if is_read else None)
        return found

    def _expected_epochs(self) -> set[int]:
        """The epochs that were committed with rows to publish."""
        staged = [one for link in self._lineage().manifests for one in link.staged]
        return {one.epoch for one in staged if one.sinks}

    def _is_current(self, epoch: int) -> bool:
        return epoch in self._expected_epochs()

    def _committed(self, epoch: int) -> list[Outputs]:
        """The outputs of an epoch, for each time that it was committed."""
        found: list[Outputs] = []
        for link in self._place.store.truth.links:
            for one in link.staged if isinstance(link, Manifest) else ():
                if one.epoch == epoch and one.sinks:
                    driver = self._by_incarnation[link.incarnation]
                    staged = driver.sink.staged[epoch, one.attempt]
                    found.append(driver.reference.outputs[epoch] if driver.is_exact else staged)
        return found

    # -- the adversary -------------------------------------------------------------------

    def _strike(self, process: str, what: str) -> None:
        world, scenario = self.world, self.scenario
        if self._calm:
            return
        if process.startswith("driver"):
            often = 1.0 if what.startswith(_MOMENTS) else 0.1
            most = scenario.deaths + self.restores  # not all before the first rewind
            if self.deaths < most and world.maybe(scenario.death_rate * often):
                self._hit_driver(process)
        if self.node_faults < scenario.node_faults and world.maybe(scenario.rate):
            self._hit_node(process)
        if self.fulls < scenario.fulls and what.startswith("store"):
            often = 1.0 if what.startswith(("store put", "store delete")) else 0.1
            if world.maybe(scenario.full_rate * often):
                self._fill_store(process)

    def _fill_store(self, process: str) -> None:
        """Let the store run out of space, mostly while a process writes to it."""
        self.fulls += 1
        seconds = self.world.random.choice((0.002, 0.05, 1.0, 6.0, 30.0))
        self._place.store.fill_up(seconds, process if self.world.maybe(0.5) else None)

    def _hit_driver(self, name: str) -> None:
        world = self.world
        self.deaths += 1
        kinds = ("crash", "crash", "crash", "pause", "pause", "pause", "cut", "alone", "away")
        kind = world.random.choice(kinds)
        seconds = world.random.choice((0.05, 1.0, 6.0, 30.0, 100.0))
        if kind == "crash":
            world.crash(name)
            return
        if kind == "pause":
            world.pause(name)
            world.at(seconds, partial(world.resume, name))
        elif kind == "cut":
            self._cut_off(name, seconds)
        else:
            self._place.store.go_away(seconds, name if kind == "alone" else None)
        if world.maybe(0.7):
            self._hanging = True

    def _cut_off(self, name: str, seconds: float) -> None:
        """Cut the links between a driver and its nodes; it may declare all of them dead."""
        self._cut_off_once.add(name)
        driver = next(driver for driver in self.drivers if driver.name == name)
        nodes = driver.cluster.living() if driver.cluster is not None else []
        self._injector.faulted.update(nodes)
        links = [(name, node) if self.world.maybe(0.5) else (node, name) for node in nodes]
        for source, target in links:
            self.world.cut(source, target)
            self.world.at(seconds, partial(self.world.mend, source, target))

    def _hit_node(self, process: str) -> None:
        world = self.world
        living = [d for d in self.drivers if d.cluster is not None and d.cluster.living()]
        if not living:
            return
        driver = world.random.choice(living)
        assert driver.cluster is not None
        nodes = driver.cluster.living()
        if process in nodes and world.maybe(0.5):
            victims = [node for node in nodes if node == process]
        elif world.maybe(0.3):
            victims = [node for node in nodes if world.maybe(0.7)]
        else:
            victims = [world.random.choice(nodes)]
        if not victims or not self._may_hit(driver, {*self._injector.out_of_reach, *victims}):
            return
        self.node_faults += 1
        kind = world.random.choice(("crash", "crash", "pause"))
        for node in victims:
            if kind == "crash":
                self._injector.crash(node)
            else:
                self._injector.pause(node)

    def _healthy(self) -> list[str]:
        clusters = [] if self._calm else [d.cluster for d in self.drivers if d.cluster is not None]
        return self._injector.healthy(node for cluster in clusters for node in cluster.machines)

    def _may_hit(self, driver: Driver, victims: set[str]) -> bool:
        if driver.size.durability == "epoch":
            return self._reachable(driver, victims)
        if (
            self.scenario.may_lose_state
            or driver.checks is None
            or not self.world.alive(driver.name)
        ):
            return True
        assert driver.cluster is not None
        if not driver.cluster.coordinator.has_begun:
            return False
        return bool((driver.checks.survivors(victims) > 0).all())

    def _reachable(self, driver: Driver, victims: set[str]) -> bool:
        """Whether a driver has a node without any fault."""
        if driver.cluster is None:
            return False
        coordinator = driver.cluster.coordinator
        lost = coordinator.roster.dead_nodes if coordinator.has_begun else ()
        nodes = [node for node in driver.cluster.living() if node not in lost]
        return any(node not in victims for node in self._injector.healthy(nodes))


def _stored(workload: Workload, stored: StoredState, job: JobVertex) -> dict[str, Any]:
    """The state of a job in the store; that of windows as a node restores it."""
    if job.windowing is None:
        return {key: workload.comparable(state) for key, state in stored.items()}
    restored = operator_for(job, stored.slots).state
    every = range(stored.slots)
    stored._load(restored, restored.decode, every)
    items = restored.items(mask_of(every, stored.slots))
    return {key: workload.comparable(state) for key, state in items}
