"""The load of a simulated cluster, from the feeds of its nodes to the coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.elastic.load import Load
from millstream.sim import World
from tests.coordinator.clusters import N0, N1, N2, SLOTS, Run


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


def test_every_epoch_adds_the_load_of_all_nodes_and_slots(world: World) -> None:
    run = Run(world)

    result = run.main(run.epoch)

    [load] = run.coordinator.load.history
    rows = sum(receipt.rows for receipt in result.receipts if receipt.job == 1)
    assert load.epoch == 0 and load.epoch_seconds > 0
    assert set(load.nodes) == {N0, N1, N2}
    assert len(load.tuples) == SLOTS
    assert load.jobs[run.cluster.workload.jobs[1].name].tuples.sum() == rows > 0
    assert sum(node.tuples for node in load.nodes.values()) == pytest.approx(load.tuples.sum())
    assert sum(node.reduce_seconds for node in load.nodes.values()) == pytest.approx(
        load.seconds.sum()
    )


def test_slots_keep_their_load_when_their_owner_dies(world: World) -> None:
    run = Run(world)

    def main() -> tuple[list[int], Load, Load]:
        for _ in range(3):
            run.epoch()
        before, owned = run.coordinator.load.history[-1], run.owned_by(N1)
        world.crash(N1)
        run.epoch()
        return owned, before, run.coordinator.load.history[-1]

    owned, before, after = run.main(main)

    assert set(after.nodes) == {N0, N2}
    # The history of three epochs has more weight than the newest one.
    assert after.tuples[owned].sum() > 0.2 * before.tuples[owned].sum() > 0
    assert after.state_bytes.sum() > 0
