"""What the pool does, tick by tick, as members and executors come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.pool_options import ExecutorSupply, PoolOptions
from millstream.elastic.pool_plan import Executor, LaunchPlan, PoolMember
from millstream.elastic.pool_state import PoolActions, PoolState, PoolView
from millstream.ring.ring import NodeId

TICK = 0.5


@dataclass
class World:
    """A cluster in which every wish comes true when a test says so."""

    options: PoolOptions
    target: int
    cores: dict[str, int]
    members: list[PoolMember] = field(default_factory=list)
    dead: set[NodeId] = field(default_factory=set)
    starting: Counter[str] = field(default_factory=Counter)
    plan: LaunchPlan = field(default_factory=LaunchPlan)
    now: float = 100.0
    tries: int = 0
    kinds: list[str] = field(default_factory=list)
    numbers: int = 0

    def begin(self) -> World:
        at = 0
        while len(self.members) < self.target:
            names = sorted(self.cores)
            self.members.append(self.new(names[at % len(names)]))
            at += 1
        self.state = PoolState(self.options, self.target, self.members)
        return self

    def new(self, executor: str, *, standby: bool = False) -> PoolMember:
        self.numbers += 1
        return PoolMember(node=NodeId(f"n{self.numbers}"), executor=executor, standby=standby)

    def tick(self, *, after: float = TICK) -> PoolActions:
        self.now += after
        actions = self.state.tick(
            PoolView(
                now=self.now,
                target=self.target,
                members=list(self.members),
                dead=set(self.dead),
                executors=[
                    Executor(name=name, host="host", cores=cores)
                    for name, cores in self.cores.items()
                ],
                starting=dict(self.starting),
                tries=self.tries,
            )
        )
        self.plan = actions.launches
        self.kinds += [event.kind for event in actions.events]
        return actions

    def claim(self, executors: Iterable[str] | None = None) -> None:
        """Tasks on executors claim what they are allowed to."""
        for name in executors or list(self.cores):
            while (rest := self.plan.claimed_by(name)) is not None:
                self.plan = rest
                self.starting[name] += 1

    def join(self) -> None:
        """What was started joins, and becomes active if nodes are lacking."""
        for name in self.starting.elements():
            self.members.append(self.new(name, standby=True))
        self.starting.clear()
        for at, member in enumerate(self.members):
            active = sum(not m.standby and not m.leaving for m in self.members)
            if member.standby and active < self.target:
                self.members[at] = replace(member, standby=False)

    def settle(self, ticks: int = 3) -> None:
        for _ in range(ticks):
            self.tick()
            self.claim()
            self.join()

    def kill(self, node: str) -> None:
        self.dead.add(NodeId(node))
        self.members = [member for member in self.members if member.node != node]

    def kill_executor(self, name: str) -> None:
        del self.cores[name]
        del self.starting[name]
        for member in list(self.members):
            if member.executor == name:
                self.kill(member.node)

    def leave(self, node: str) -> None:
        self.members = [member for member in self.members if member.node != node]

    def on(self) -> Counter[str]:
        return Counter(member.executor for member in self.members)


def world(
    target: int,
    cores: dict[str, int],
    supply: ExecutorSupply = ExecutorSupply.ELASTIC,
    **options: Any,
) -> World:
    return World(PoolOptions(supply=supply, **options), target, cores).begin()


# -- nodes -----------------------------------------------------------------------------------


def test_nothing_is_done_while_all_nodes_are_there() -> None:
    assert world(2, {"1": 1, "2": 1}).tick() == PoolActions()


def test_standby_nodes_are_started_besides_the_target() -> None:
    pool = world(2, {"1": 2, "2": 2}, standby=2)

    assert pool.tick().launches == LaunchPlan(total=2, limits={"1": 1, "2": 1})

    pool.claim()
    assert pool.tick().launches.total == 0  # they are starting
    pool.join()
    assert pool.tick() == PoolActions()


def test_a_dead_node_is_replaced_on_its_executor_at_once() -> None:
    pool = world(3, {"1": 2, "2": 2, "3": 2})
    pool.cores["0"] = 2  # is as empty as executor 3 will be
    pool.kill("n3")

    assert pool.tick().launches == LaunchPlan(total=1, limits={"3": 1})

    pool.claim()
    pool.join()
    [event] = pool.tick(after=2.0).events
    assert event.kind == "replaced"
    assert event.facts["lost"] == "n3" and event.facts["seconds"] == 2.0
    assert event.text == "node n4 on executor 3 replaces node n3, which died 2.0 s ago"


def test_a_replacement_takes_any_executor_when_time_runs_out() -> None:
    pool = world(2, {"1": 2, "2": 2}, replace_after=timedelta(seconds=6))
    pool.kill("n1")

    assert pool.tick().launches.limits == {"1": 1}
    assert pool.tick(after=3.0).launches.limits == {"1": 1}
    assert pool.tick(after=0.1).launches == LaunchPlan(total=1, limits={"1": 2, "2": 1})


def test_any_executor_will_do_after_some_jobs_that_did_not_reach_the_wanted_ones() -> None:
    pool = world(2, {"1": 2, "2": 2, "3": 1})
    pool.target = 3

    assert pool.tick().launches == LaunchPlan(total=1, limits={"3": 1})
    pool.tries = 3
    assert pool.tick().launches == LaunchPlan(total=1, limits={"1": 1, "2": 1, "3": 1})


def test_nodes_of_a_dead_executor_wait_for_the_one_that_spark_brings() -> None:
    pool = world(2, {"1": 1, "2": 1})
    pool.tick()
    pool.kill_executor("2")

    waiting = pool.tick()
    assert waiting.launches.total == 0 and waiting.request is None
    pool.cores["3"] = 1
    assert pool.tick().launches == LaunchPlan(total=1, limits={"3": 1})
    assert pool.kinds == []


def test_nodes_that_were_starting_on_a_dead_executor_are_started_again() -> None:
    pool = world(2, {"1": 2, "2": 2}, standby=1)
    pool.starting["2"] = 1
    assert pool.tick().launches.total == 0

    pool.starting = Counter({"7": 1})  # an executor that is gone
    assert pool.tick().launches.total == 1


def test_without_replacement_a_dead_node_is_missed_by_nobody() -> None:
    pool = world(3, {"1": 4}, replace_after=None)
    pool.kill("n1")

    assert pool.tick() == PoolActions()
    pool.target = 4  # but who asks for more gets them all
    assert pool.tick().launches.total == 2


def test_nodes_that_die_again_and_again_are_not_replaced_forever() -> None:
    pool = world(2, {"1": 2, "2": 2})
    launched = 0
    for _ in range(100):
        for member in list(pool.members):
            pool.kill(member.node)
        launched += pool.tick().launches.total
        pool.claim()
        pool.join()
    assert launched < 15
    assert pool.kinds.count("replacement-paused") == 1

    assert pool.tick(after=60.0).launches.total == 2


def test_a_node_that_was_given_up_is_not_replaced_by_one_that_comes_later() -> None:
    pool = world(2, {"1": 2, "2": 2})
    pool.kill("n2")
    pool.target = 1
    pool.tick()
    pool.target = 2
    pool.settle()

    assert len(pool.members) == 2 and pool.kinds == []


def test_in_local_mode_any_number_of_nodes_starts_below_the_driver() -> None:
    pool = world(2, {"driver": 2}, ExecutorSupply.LOCAL)
    pool.target = 6

    actions = pool.tick()
    assert actions.launches == LaunchPlan(total=4, limits={"driver": 4})
    assert actions.request is None


def test_a_ratio_of_nodes_to_cores_is_kept() -> None:
    pool = world(4, {"1": 1, "2": 1}, nodes_per_core=2.0)
    pool.kill_executor("2")
    pool.cores["3"] = 1

    assert pool.tick().launches == LaunchPlan(total=2, limits={"3": 2})


def test_nodes_that_are_leaving_are_not_counted_but_need_their_room() -> None:
    pool = world(2, {"1": 1, "2": 1}, ExecutorSupply.FIXED)
    pool.members = [replace(member, leaving=member.node == "n2") for member in pool.members]

    assert pool.tick().launches.total == 0
    pool.leave("n2")
    assert pool.tick().launches == LaunchPlan(total=1, limits={"2": 1})


def test_nodes_that_came_too_late_are_drained() -> None:
    pool = world(2, {"1": 2, "2": 2})
    pool.members.append(pool.new("2", standby=True))

    assert pool.tick().drain == ("n3",)


# -- executors -------------------------------------------------------------------------------


def test_executors_are_requested_when_nodes_do_not_fit() -> None:
    pool = world(4, {"1": 2, "2": 2})
    pool.target = 7

    actions = pool.tick()
    assert (actions.request, actions.launches.total) == (4, 0)
    assert pool.tick().request is None  # once
    pool.cores |= {"3": 2, "4": 2}
    assert pool.tick().launches == LaunchPlan(total=3, limits={"3": 2, "4": 1})
    assert pool.kinds == ["executors-requested", "executors-granted"]


def test_nodes_start_on_what_is_granted_of_a_request() -> None:
    pool = world(2, {"1": 1, "2": 1})
    pool.target = 4
    assert pool.tick().request == 4

    pool.cores["3"] = 1
    actions = pool.tick()
    assert (actions.launches.limits, actions.request) == ({"3": 1}, None)


def test_a_request_that_is_not_granted_is_reported_once_and_stays() -> None:
    pool = world(2, {"1": 1, "2": 1}, grant_within=timedelta(seconds=10))
    pool.target = 3
    assert pool.tick().request == 3

    assert pool.tick(after=9.0).events == ()
    [event] = pool.tick(after=1.0).events
    assert event.kind == "executors-not-granted"
    assert event.text == (
        "1 nodes have no room on 2 executors since 10 s; the run continues with fewer nodes until "
        "there are more executors"
    )
    assert pool.tick(after=60.0) == PoolActions()
    pool.cores["3"] = 1  # late, but it comes
    assert pool.tick().launches.total == 1


def test_a_larger_request_gets_time_of_its_own() -> None:
    pool = world(2, {"1": 1, "2": 1}, grant_within=timedelta(seconds=10))
    pool.target = 3
    pool.tick()
    pool.target = 5
    assert pool.tick(after=8.0).request == 5

    assert pool.tick(after=8.0).events == ()
    assert [event.kind for event in pool.tick(after=2.0).events] == ["executors-not-granted"]


def test_executors_that_are_there_take_the_nodes_if_that_is_allowed() -> None:
    patience = timedelta(seconds=10)
    pool = world(2, {"1": 1, "2": 1}, ExecutorSupply.FIXED, grant_within=patience, overcommit=True)
    pool.target = 4
    assert pool.tick().launches.total == 0

    assert pool.tick(after=10.0).launches == LaunchPlan(total=2, limits={"1": 1, "2": 1})
    pool.claim()
    pool.join()
    assert pool.tick() == PoolActions()
    pool.kill("n1")  # and what an executor held, it holds again
    assert pool.tick().launches == LaunchPlan(total=1, limits={"1": 1})


def test_a_request_is_withdrawn_when_fewer_nodes_are_wanted() -> None:
    pool = world(2, {"1": 1, "2": 1})
    pool.target = 4
    assert pool.tick().request == 4
    pool.target = 2

    assert pool.tick().request == 2
    assert pool.tick() == PoolActions()


def test_an_executor_whose_nodes_left_is_released_after_a_while() -> None:
    pool = world(2, {"1": 1, "2": 1}, release_after=timedelta(seconds=10))
    pool.tick()
    pool.target = 1
    pool.members = [replace(member, leaving=member.node == "n2") for member in pool.members]
    pool.tick()
    pool.leave("n2")
    assert pool.tick().release == ()

    actions = pool.tick(after=10.0)
    assert (actions.release, actions.request) == (("2",), 1)
    assert pool.tick() == PoolActions()  # it takes a while to end
    del pool.cores["2"]
    assert pool.kinds == ["executors-released"]
    pool.target = 2
    assert pool.tick().request == 2  # Spark does not bring it by itself


def test_nodes_do_not_start_on_an_executor_that_was_released() -> None:
    pool = world(2, {"1": 1, "2": 1}, release_after=timedelta(0))
    pool.target = 1
    pool.leave("n2")
    assert pool.tick().release == ("2",)
    pool.target = 2

    actions = pool.tick()
    assert (actions.launches.total, actions.request) == (0, 2)
    assert pool.tick(after=30.0).launches.limits == {"2": 1}  # Spark has kept it, it seems


def test_an_executor_that_never_had_a_node_is_not_released() -> None:
    pool = world(1, {"1": 1, "2": 8})

    assert all(not pool.tick(after=10.0).release for _ in range(10))


def test_an_executor_that_gets_a_node_again_is_not_released() -> None:
    pool = world(2, {"1": 1, "2": 1})
    pool.target = 1
    pool.leave("n2")
    pool.tick()
    pool.target = 2

    actions = pool.tick(after=100.0)
    assert (actions.launches.limits, actions.release) == ({"2": 1}, ())
    pool.claim()
    assert pool.tick(after=10.0) == PoolActions()
    pool.join()
    assert pool.tick(after=100.0) == PoolActions()


def test_an_executor_whose_node_died_while_it_was_leaving_is_released() -> None:
    pool = world(2, {"1": 1, "2": 1})
    pool.target = 1
    pool.members = [replace(member, leaving=member.node == "n2") for member in pool.members]
    pool.tick()
    pool.kill("n2")
    pool.tick()

    assert pool.tick(after=10.0).release == ("2",)


@pytest.mark.parametrize("supply", [ExecutorSupply.LOCAL, ExecutorSupply.FIXED])
def test_executors_are_released_and_requested_only_where_that_works(
    supply: ExecutorSupply,
) -> None:
    pool = world(3, {"1": 1, "2": 1, "3": 1}, supply)
    pool.target = 2
    pool.leave("n3")
    assert all(not pool.tick(after=20.0).release for _ in range(3))

    pool.target = 9
    assert pool.tick().request is None


# -- whatever happens ------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 20)),
    st.tuples(st.just("kill executor"), st.integers(0, 5)),
    st.tuples(st.just("new executor"), st.integers(1, 3)),
    st.tuples(st.just("target"), st.integers(1, 8)),
    st.tuples(st.just("claim"), st.integers(0, 5)),
    st.tuples(st.just("join"), st.just(0)),
    st.tuples(st.just("pause"), st.integers(0, 40)),
)


def step(pool: World, what: str, number: int) -> None:
    names = sorted(pool.cores)
    if what == "kill" and len(pool.members) > 1:
        pool.kill(pool.members[number % len(pool.members)].node)
    elif what == "kill executor" and len(names) > 1:
        pool.kill_executor(names[number % len(names)])
    elif what == "new executor":
        pool.numbers += 1
        pool.cores[f"e{pool.numbers}"] = number
    elif what == "target":
        pool.target = number
        active = [m.node for m in pool.members if not m.standby]
        for node in active[number:]:
            pool.leave(node)
    elif what == "claim":
        pool.claim([names[number % len(names)]])
    elif what == "join":
        pool.join()
    elif what == "pause":
        pool.now += number


@given(
    st.lists(STEP, max_size=40),
    st.integers(0, 2),
    st.sampled_from(ExecutorSupply),
    st.integers(1, 4),
)
def test_nodes_are_never_too_many_and_all_there_when_there_is_room(
    steps: list[tuple[str, int]], standby: int, supply: ExecutorSupply, target: int
) -> None:
    pool = world(target, {"1": 2, "2": 2}, supply, standby=standby)
    for what, number in steps:
        step(pool, what, number)
        before = pool.on() + pool.starting
        for node in pool.tick().drain:
            pool.leave(node)
        staying = len(pool.members) + pool.starting.total()
        assert pool.plan.total <= max(0, pool.target + standby - staying)
        assert pool.plan.total <= sum(pool.plan.limits.values())
        if supply is not ExecutorSupply.LOCAL:
            for name, limit in pool.plan.limits.items():
                assert before[name] + limit <= max(2, pool.cores[name])

    pool.now += 100.0  # however many died
    pool.join()
    for number in range(8):
        pool.cores[f"new{number}"] = 2
    for _ in range(4):
        for node in pool.tick().drain:
            pool.leave(node)
        pool.claim()
        pool.join()
    assert len(pool.members) == pool.target + standby
    assert pool.tick().launches.total == 0
