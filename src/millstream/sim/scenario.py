"""One simulated run from one seed: a cluster, an input, and an adversary.

The adversary crashes, pauses and cuts off nodes at any step, as long as every slot has one
complete copy out of its reach: then nothing may be lost. In some scenarios state may be lost, and
then the run may end, but only with ``StateLostError``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from millstream.coordinator.epochs import run_epoch
from millstream.coordinator.roster import StateLostError
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.sim.checks import Checks, ViolationError
from millstream.sim.cluster import DRIVER, Cluster, Size
from millstream.sim.durable import DurableRun
from millstream.sim.durable_scenario import DurableScenario
from millstream.sim.fault_injector import FaultInjector
from millstream.sim.links import Faults
from millstream.sim.network import World
from millstream.sim.reader import Reader, read_all
from millstream.sim.scratch_disk import ScratchDisk
from millstream.sim.sink_models import MemorySink
from millstream.sim.slowness import Slowness
from millstream.sim.spark import Shape, SparkBody, SparkFaults
from millstream.sim.tasks import StalledError
from millstream.sim.workload import Moment
from millstream.sim.workloads import CONSISTENT, EVENT_TIME, drawn, workload_of
from millstream.wire.feed import NotDeterministicError

Blow = Literal["crash", "pause", "cut"]
"""What may happen to a node: its process ends or stops for a while, or links to it are cut."""

_TOO_LONG = 2_000.0


@dataclass(frozen=True)
class Scenario:
    """The scenario of a seed."""

    seed: int
    size: Size
    shape: Shape
    spark_faults: SparkFaults
    faults: Faults
    epochs: int
    node_faults: int
    rate: float
    changes: float
    may_lose_state: bool
    workload: str = "plain"
    kinds: tuple[Blow, ...] = ("crash", "crash", "pause", "cut")
    slowness: Slowness = field(default_factory=Slowness)
    reads: float | None = None  # seconds between reads of state, about

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Draw a scenario."""
        rng = random.Random(f"scenario {seed}")
        nodes = rng.choice((2, 3, 3, 4, 5))
        flaky = rng.random() < 0.08
        size = Size(
            nodes=nodes,
            executors=rng.randint(1, nodes),
            slots=rng.choice((5, 8, 12)),
            replicas=rng.choice((0, 1, 1, 1, 2)),
            durability=rng.choice(("epoch", "interval")),
            log_limit=rng.choice((500, 1_000_000)),
            disk=ScratchDisk.of(seed),
        )
        bad = rng.choice((0.0, 0.0, 0.01, 0.05))
        scenario = cls(
            seed=seed,
            size=size,
            shape=Shape(size.slots, rng.randint(1, 4), rng.randint(1, 3)),
            spark_faults=SparkFaults(
                kill=rng.choice((0.0, 0.1, 0.3)),
                speculate=rng.choice((0.0, 0.2)),
                rerun=0.5 if flaky else rng.choice((0.0, 0.3)),
                twice=0.5 if flaky else rng.choice((0.0, 0.2)),
                partly=0.0 if flaky else rng.choice((0.0, 0.2)),
                flaky=0.2 if flaky else 0.0,
            ),
            faults=Faults(
                lose_request=bad,
                lose_answer=bad,
                duplicate=bad,
                break_feed=bad * 2,
                slow=rng.choice((0.0, 0.0, 0.01)),
                stall=rng.choice((0.0, 0.0, 0.002)),
            ),
            epochs=rng.randint(3, 7),
            node_faults=rng.randint(0, 5),
            rate=rng.choice((0.002, 0.01, 0.03)),
            changes=rng.choice((0.0, 0.4)),
            may_lose_state=rng.random() < 0.1,
            slowness=Slowness.of(seed),
            reads=rng.choice((None, None, 0.3, 2.0)),
        )
        workload = rng.choice(CONSISTENT) if flaky else drawn(seed)
        if workload not in EVENT_TIME:
            return replace(scenario, workload=workload)
        return _with_windows(scenario, workload, rng)


def _with_windows(scenario: Scenario, workload: str, rng: random.Random) -> Scenario:
    """A scenario for windows, which live for several epochs.

    Some are calm: there slots go from one node to the other and back, and nothing else happens.
    """
    scenario = replace(scenario, workload=workload, epochs=scenario.epochs + 2)
    if rng.random() < 0.7:
        return scenario
    return replace(
        scenario,
        size=replace(scenario.size, nodes=2, executors=2, replicas=1),
        shape=replace(scenario.shape, partitions=2, tasks=1),
        spark_faults=SparkFaults(kill=0.0, speculate=0.0, rerun=0.0, twice=0.0, partly=0.0),
        faults=Faults(),
        node_faults=0,
        epochs=9,
        changes=0.9,
    )


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exactly, or with a typed error."""

    scenario: Scenario | DurableScenario
    error: StateLostError | NotDeterministicError | None
    seconds: float
    node_faults: int
    lost_nodes: int
    fingerprint: int
    drivers: int = 1


class ScenarioFailedError(AssertionError):
    """A run that violated an invariant, with its trace."""


def simulate(seed: int, story: int = 40) -> Outcome:
    """Run the scenario of a seed; raises ``ScenarioFailedError`` when an invariant is violated."""
    return play(draw(seed), story)


def draw(seed: int) -> Scenario | DurableScenario:
    """The scenario of a seed: every third has a store."""
    return DurableScenario.of(seed) if seed % 3 == 2 else Scenario.of(seed)


def play(scenario: Scenario | DurableScenario, story: int = 40) -> Outcome:
    """Run a scenario; deterministic."""
    with World(scenario.seed) as world:
        world.faults = scenario.faults
        try:
            if isinstance(scenario, DurableScenario):
                return _play_durable(world, scenario)
            return _Run(world, scenario).go()
        except (ViolationError, StalledError, AssertionError) as problem:
            text = "\n".join(str(problem).split("\n")[:story])
            raise ScenarioFailedError(
                f"seed {scenario.seed}: {text}\n{scenario}\n... the last steps:\n"
                f"{world.story(story)}"
            ) from problem


def _play_durable(world: World, scenario: DurableScenario) -> Outcome:
    run = DurableRun(world, scenario)
    run.go(_TOO_LONG)
    return Outcome(
        scenario,
        None,
        world.now,
        run.node_faults + run.deaths,
        run.lost_nodes,
        world.fingerprint,
        len(run.drivers),
    )


class _Run:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._workload = workload_of(scenario.workload)
        self._cluster = Cluster(
            world,
            scenario.size,
            world.process(DRIVER),
            workload=self._workload,
            slowness=scenario.slowness,
        )
        self._reference = self._workload.answer(scenario.size.slots)
        self._checks = Checks(self._cluster, self._reference)
        self._sink = MemorySink()
        self._input = random.Random(f"input {scenario.seed}")
        self._injector = FaultInjector(world)
        self._blows = 0
        self._over = False

    def go(self) -> Outcome:
        error: StateLostError | NotDeterministicError | None = None
        try:
            self._world.run(self._main, DRIVER, until=_TOO_LONG)
        except StateLostError as lost:
            if not self._scenario.may_lose_state:
                raise ViolationError(f"I4: {lost}") from None
            error = lost
        except NotDeterministicError as problem:
            if not self._scenario.spark_faults.flaky:
                raise ViolationError(str(problem)) from None
            error = problem
        except MillstreamError as problem:
            raise ViolationError(
                f"L: the run gave up: {type(problem).__name__}: {problem}"
            ) from problem
        lost_nodes = len(self._cluster.coordinator.roster.dead_nodes)
        world = self._world
        return Outcome(self._scenario, error, world.now, self._blows, lost_nodes, world.fingerprint)

    def _main(self) -> None:
        scenario, cluster = self._scenario, self._cluster
        cluster.begin(scenario.shape.partitions)
        self._world.on_step = self._step
        scenario.slowness.begin(self._world, self._healthy)
        if scenario.reads is not None and not scenario.spark_faults.flaky:
            reader = Reader(cluster, self._reference, lambda: self._over)
            cluster.driver.spawn(partial(reader.read_always, scenario.reads), "reader")
        source = self._workload.epochs(self._input, scenario.shape.tasks)
        for epoch, (now, given) in enumerate(islice(source, scenario.epochs)):
            self._reference.add(given, Moment(now))
            if self._world.maybe(scenario.changes):
                cluster.change()
            body = SparkBody(
                self._world,
                cluster.driver,
                cluster.hosts,
                scenario.shape,
                scenario.spark_faults,
                given,
                self._sink,
                self._workload,
            )
            result = run_epoch(cluster.coordinator, epoch, now, body)
            if not scenario.spark_faults.flaky:
                self._checks.counts(result)
            self._world.note(f"epoch {epoch} is committed")
            cluster.driver.sleep(self._world.random.choice((0.0, 0.2, 3.0)))
        self._over = True
        self._checks.await_copies(lambda: self._injector.until)
        self._examine()

    def _step(self, process: str, what: str) -> None:
        self._checks.step(self._injector.faulted, exact=not self._scenario.spark_faults.flaky)
        if (
            not self._over
            and self._blows < self._scenario.node_faults
            and self._world.maybe(self._scenario.rate)
        ):
            self._strike(process)

    def _healthy(self) -> list[str]:
        return self._injector.healthy(() if self._over else self._cluster.machines)

    def _strike(self, process: str) -> None:
        """Hit a node, often the one that makes this step, or an executor with all its nodes."""
        world, nodes = self._world, list(self._cluster.machines)
        if process in nodes and world.maybe(0.5):
            victims = [NodeId(process)]
        elif world.maybe(0.2):
            victims = world.random.choice(list(self._cluster.executors.values()))
        else:
            victims = [world.random.choice(nodes)]
        victims = [node for node in victims if world.alive(node)]
        faulty = {*self._injector.out_of_reach, *victims}
        if not victims or (not self._scenario.may_lose_state and not self._spares(faulty)):
            return
        self._blows += 1
        kind = world.random.choice(self._scenario.kinds)
        for node in victims:
            if kind == "crash":
                self._injector.crash(node)
            elif kind == "pause":
                self._injector.pause(node)
            else:
                others = [DRIVER, *(other for other in nodes if other != node)]
                self._injector.cut(node, [other for other in others if world.maybe(0.5)])

    def _spares(self, faulty: set[str]) -> bool:
        return bool((self._checks.survivors(faulty) > 0).all())

    def _examine(self) -> None:
        """Compare the state as users read it, and all that was ever published, with the answer."""
        coordinator, jobs = self._cluster.coordinator, self._workload.jobs
        states = {job: dict(read_all(coordinator, job)) for job in jobs}
        published = dict(self._sink.published)
        visible = [published.get(epoch) for epoch in range(self._scenario.epochs)]
        if self._scenario.spark_faults.flaky:  # the answer is not known
            self._checks.agreement()
        else:
            self._check_states(states)
            self._checks.outputs(self._sink.published)
            self._checks.states()
        if problem := self._workload.disagreement(visible, states.__getitem__):
            raise ViolationError(f"I2: {problem}")

    def _check_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        for job, by_key in states.items():
            found = {key: self._workload.comparable(state) for key, state in by_key.items()}
            expected = self._reference.state(self._scenario.epochs - 1, job)
            if found != expected:
                raise ViolationError(f"I1: job {job} ends with {found}, not {expected}")
