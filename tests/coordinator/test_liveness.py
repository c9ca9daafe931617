"""Slow nodes, silent nodes and broken links: who is waited for, and who is fenced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from millstream.coordinator.failure_evidence import Patience
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.sim.cluster import DRIVER
from millstream.wire.replication import ReplicateUnit
from tests.coordinator.clusters import N0, N1, SLOTS, Run

SILENCE = Patience().silence


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


def takes_copies_slowly(run: Run, node: NodeId, seconds: float) -> None:
    """Let a node need so long for every copy; it answers its pings meanwhile."""
    machine = run.cluster.machines[node]
    take = machine.take_copy

    def slowly(copy: ReplicateUnit) -> None:
        run.world.wait("for a busy core", seconds)
        take(copy)

    machine.take_copy = slowly  # type: ignore[method-assign]


def test_a_node_that_is_slow_to_take_copies_is_waited_for_and_not_fenced(world: World) -> None:
    run = Run(world, nodes=3, replicas=1)

    def main() -> None:
        run.epoch()
        takes_copies_slowly(run, N1, 7.0)
        for _ in range(3):
            run.epoch()
        assert run.coordinator.roster.dead_nodes == ()
        assert run.states() == run.expected()

    run.main(main, until=2000.0)


def test_of_two_nodes_that_cannot_reach_each_other_one_is_fenced(world: World) -> None:
    run = Run(world, nodes=3, replicas=1)

    def main() -> None:
        run.epoch()
        world.cut(N0, N1)
        world.cut(N1, N0)
        began = world.now
        while not run.coordinator.roster.dead_nodes:
            run.epoch()
            run.rest(0.5)
            assert world.now - began < 10 * SILENCE
        run.rest(10.0)
        run.epoch()
        assert len(run.coordinator.roster.dead_nodes) == 1
        assert run.coordinator.roster.dead_nodes[0] in (N0, N1)
        assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS
        assert run.states() == run.expected()

    run.main(main, until=2000.0)


def test_a_node_that_answers_another_ping_during_its_investigation_is_not_fenced(
    world: World,
) -> None:
    run = Run(world, nodes=3, replicas=1)

    def main() -> None:
        run.epoch()
        coordinator = run.coordinator
        world.cut(DRIVER, N1)
        coordinator.net.spawn(partial(coordinator.investigate, N1), "investigate")
        run.rest(SILENCE / 2 + 1.0)  # the last ping is lost, but has half of the patience
        world.mend(DRIVER, N1)
        run.rest(SILENCE)
        assert coordinator.roster.dead_nodes == ()

    run.main(main, until=2000.0)
