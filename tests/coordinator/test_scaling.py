"""Members that join and leave a run, and slots that move, in a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from millstream.coordinator.autoscaler import Autoscaler
from millstream.coordinator.layout import Layout
from millstream.elastic.actions import Action, RemoveNodes
from millstream.elastic.cooldown import Cooldown
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.ring.ring import NodeId, Ring
from millstream.sim import World
from millstream.wire.replication import SlotsNotHeldError
from tests.coordinator.clusters import N0, N1, N2, SLOTS, Run


@pytest.fixture
def world() -> Iterator[World]:
    with World(23) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world, nodes=2)


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.coordinator.events.all()]


def test_a_node_that_joins_gets_a_share_and_nobody_else_loses_a_copy(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.coordinator.scaling.scale_to(3)
        run.cluster.join()
        for _ in range(4):
            run.epoch()
            run.rest(1.0)
        roster = run.coordinator.roster
        assert len(run.owned_by(N2)) == SLOTS // 3 and roster.pending == 0
        assert roster.copy_counts().tolist() == [2] * SLOTS

    run.main(main)


def test_a_node_leaves_although_no_epoch_follows(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.coordinator.scaling.drain([N1])
        run.rest(30.0)
        assert run.coordinator.roster.nodes == (N0,) and "leave" in kinds(run)
        assert not run.world.alive(N1)

    run.main(main)


def test_nodes_that_were_too_many_stay_if_they_are_wanted_again(run: Run) -> None:
    def main() -> None:
        run.epoch()
        scaling, roster = run.coordinator.scaling, run.coordinator.roster

        def waver() -> None:
            scaling.scale_to(1)
            scaling.scale_to(2)

        run.at["staged"] = waver
        run.epoch()
        run.rest(10.0)
        assert roster.active == (N0, N1) and not roster.leaving and roster.pending == 0

    run.main(main)


def test_a_node_that_had_to_stay_for_a_dead_one_leaves_when_the_target_is_reached(
    run: Run,
) -> None:
    def main() -> None:
        run.epoch()
        scaling, roster = run.coordinator.scaling, run.coordinator.roster
        run.cluster.join()
        scaling.scale_to(3)
        for _ in range(4):
            run.epoch()
            run.rest(2.0)
        scaling.scale_to(1)
        [staying] = roster.active
        run.world.crash(staying)
        run.coordinator.investigate(staying)
        for _ in range(8):
            run.epoch()
            run.rest(4.0)
        assert len(roster.active) == roster.target == 1

    run.main(main)


def test_standby_nodes_are_dismissed_and_others_are_not(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.cluster.join()
        run.coordinator.scaling.dismiss([N2, N1])
        run.rest(10.0)
        assert run.coordinator.roster.nodes == (N0, N1) and run.coordinator.roster.target == 2

    run.main(main)


class Greedy:
    """A policy that removes all nodes that it may, or fails."""

    name = "greedy"

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.seen: list[Limits] = []

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        self.seen.append(limits)
        if self.problem is not None:
            raise self.problem
        count = len(ring.nodes) - limits.min_nodes
        return [RemoveNodes(nodes=ring.nodes[:count], reason="greed")] if count else []


@pytest.mark.parametrize("problem", [None, KeyError("no such node")])
def test_a_policy_neither_takes_the_last_replica_nor_ends_the_run(
    run: Run, problem: Exception | None
) -> None:
    greedy = Greedy(problem)

    def main() -> None:
        calm = Cooldown(epochs=1)
        run.coordinator._autoscaler = Autoscaler(greedy, min_nodes=1, max_nodes=4, cooldown=calm)
        for _ in range(3):
            run.epoch()
            run.rest(5.0)
        assert run.coordinator.roster.active == (N0, N1)
        assert ("policy-failed" in kinds(run)) == (problem is not None)

    run.main(main)
    assert {limits.min_nodes for limits in greedy.seen} == {2}


def test_moves_to_a_node_that_cannot_take_copies_are_abandoned_and_reported(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.cluster.join()
        store = run.cluster.machines[N2].store

        def refuse(snapshot: object) -> None:
            raise SlotsNotHeldError("no module named 'users'")

        store.install = refuse  # type: ignore[method-assign]
        run.coordinator.scaling.scale_to(3)
        for _ in range(40):
            run.epoch()
            run.rest(3.0)
        assert "copy-failed" in kinds(run) and run.owned_by(N2) == []

    run.main(main, until=5000.0)


# -- the layout in manifests ---------------------------------------------------------------------


def test_a_layout_gives_the_same_shares_to_other_nodes_of_the_same_number() -> None:
    a, b, c = (NodeId(name) for name in "abc")
    goal = Ring.of_table(3, [a, b], np.array([0, 0, 1, 0, 1, 1]))
    layout = Layout.from_manifest(Layout.of(goal, 2).to_manifest())

    assert layout is not None and layout.nodes == 2
    ring = layout.ring([c, a], 6)
    assert ring is not None and [ring.owner(slot) for slot in range(6)] == [c, c, a, c, a, a]
    assert layout.ring([a, b, c], 6) is None and layout.ring([a, b], 4) is None


@pytest.mark.parametrize("recorded", [{}, {"nodes": 2}, {"nodes": 2, "arcs": [1]}])
def test_a_damaged_layout_is_none(recorded: dict[str, object]) -> None:
    assert Layout.from_manifest(recorded) is None
