"""Re-replication: orders do not wait for each other, and each ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from millstream.coordinator import rereplication
from millstream.node import key_batches
from millstream.ring.ring import NodeId
from millstream.sim import World
from tests.coordinator.clusters import N0, N1, N2, N3, SLOTS, Run

WHOLE = [2] * SLOTS


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world, nodes=4)


def delay_snapshots(run: Run, node: NodeId, seconds: float = 1000.0) -> None:
    """Delay the snapshots of a node; it serves everything else meanwhile."""
    store = run.cluster.machines[node].store
    most_keys = store.most_keys

    def slowly(slots: range) -> int:
        run.world.wait("for a busy core", seconds)
        return most_keys(slots)

    store.most_keys = slowly  # type: ignore[method-assign]


def lacking(run: Run, copies: int = 2) -> list[int]:
    return np.flatnonzero(run.coordinator.roster.copy_counts() < copies).tolist()


def test_a_donor_that_does_not_answer_delays_only_its_own_orders(run: Run) -> None:
    def main() -> None:
        run.epoch()
        delay_snapshots(run, N0)
        run.world.crash(N3)
        run.coordinator.investigate(N3)
        orders = run.coordinator.roster.missing_copies(spare_owners=True)
        assert [order.donor for order in orders] == [N0, N2]
        assert lacking(run) == list(range(6, 12))
        run.rest(5.0)
        assert lacking(run) == [slot for slots in orders[0].slots for slot in slots]

    run.main(main)


def test_the_orders_of_a_dead_donor_are_given_to_another(world: World) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        run.epoch()
        delay_snapshots(run, N0)
        world.crash(N3)
        run.coordinator.investigate(N3)
        run.rest(2.0)
        assert lacking(run, 3) != []
        world.pause(N0)
        run.rest(25.0)
        assert run.coordinator.roster.dead_nodes == (N3, N0)
        assert run.coordinator.roster.copy_counts().tolist() == WHOLE
        assert run.coordinator._rereplication._under_way == set()

    run.main(main)


def test_an_order_lasts_as_long_as_it_makes_progress(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("_BETWEEN_EPOCHS", "_WITHIN_EPOCHS"):
        monkeypatch.setattr(rereplication, part, 0.0)
    monkeypatch.setattr(key_batches, "_KEYS_AT_ONCE", 1)
    monkeypatch.setattr(rereplication, "_COPY_TIMEOUT", 30.0)

    def main() -> None:
        for _ in range(3):
            run.epoch()
        delay_snapshots(run, N0, 20.0)
        run.world.crash(N3)
        run.coordinator.investigate(N3)
        began = run.world.now
        while lacking(run):
            run.rest(1.0)
        assert run.world.now - began > 40.0
        assert run.coordinator._rereplication._avoid == {}

    run.main(main)


def test_a_failed_copy_is_ordered_from_another_donor(world: World) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        run.epoch()
        world.cut(N0, N1)
        world.crash(N3)
        run.coordinator.investigate(N3)
        orders = run.coordinator.roster.missing_copies(spare_owners=True)
        assert (N0, N1) in [(order.donor, order.to) for order in orders]
        run.rest(9.0)  # a link that is broken for so short a time fences no node
        assert lacking(run, 3) == [] and run.coordinator.roster.dead_nodes == (N3,)

    run.main(main)


@pytest.mark.parametrize("part", ["missing_copies", "report_reach", "enact"])
def test_an_error_on_the_way_does_not_end_rereplication(
    run: Run, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    def main() -> None:
        rereplication_ = run.coordinator._rereplication
        run.epoch()
        run.world.crash(N3)
        with monkeypatch.context() as patch:
            patch.setattr(rereplication_, "begin", lambda: None)
            run.coordinator.investigate(N3)
            run.rest(1.0)
            patch.setattr(run.coordinator.roster, part, broken)
            with pytest.raises(RuntimeError):
                for order in rereplication_._orders()[:1]:
                    rereplication_._fulfil(order)
        rereplication_._under_way -= {(N2, N1)}  # which was not started here
        rereplication_.begin()
        run.rest(1.0)
        assert run.coordinator.roster.copy_counts().tolist() == WHOLE

    run.main(main)


def test_what_came_of_orders_that_end_together_is_asked_for_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[NodeId]] = []
    update_reach = rereplication.Rereplication.update_reach

    def counted(self: rereplication.Rereplication, nodes: Iterable[NodeId]) -> None:
        asked.append(set(nodes))
        update_reach(self, asked[-1])

    def main() -> None:
        run.epoch()
        run.world.crash(N3)
        monkeypatch.setattr(rereplication.Rereplication, "update_reach", counted)
        run.coordinator.investigate(N3)
        orders = run.coordinator.roster.missing_copies(spare_owners=True)
        run.rest(1.0)
        assert len(orders) == 2
        assert asked == [{order.to for order in orders}]
        assert lacking(run) == []

    run.main(main)


def test_copies_that_are_made_during_an_epoch_are_enacted_with_the_next(run: Run) -> None:
    def main() -> None:
        run.epoch()
        during: list[bool] = []
        enact = run.coordinator.enact_changes

        def noted() -> None:
            during.append(run.coordinator.ledger.record is not None)
            enact()

        run.coordinator.enact_changes = noted  # type: ignore[method-assign]

        def lose() -> None:
            run.world.crash(N3)
            run.coordinator.investigate(N3)
            run.coordinator._rereplication.begin()
            run.rest(3.0)
            assert lacking(run) == []

        run.at["stage"] = lose
        run.epoch()
        assert True not in during

    run.main(main)
