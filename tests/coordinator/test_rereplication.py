"""Copies that are made anew: orders that do not wait for each other, and none that is for ever."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from millstream.coordinator import rereplication
from millstream.node import service as node_service
from millstream.node.durability import unit_writer
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


def hold_up(run: Run, node: NodeId, seconds: float = 1000.0) -> None:
    """Let a node need so long before it gives a snapshot; it does everything else meanwhile."""
    store = run.cluster.machines[node].store
    most_keys = store.most_keys

    def slowly(slots: range) -> int:
        run.world.wait("for a busy core", seconds)
        return most_keys(slots)

    store.most_keys = slowly  # type: ignore[method-assign]


def lacking(run: Run, copies: int = 2) -> list[int]:
    return np.flatnonzero(run.coordinator.roster.copies() < copies).tolist()


def test_a_donor_that_does_not_answer_holds_up_only_its_own_orders(run: Run) -> None:
    def main() -> None:
        run.epoch()
        hold_up(run, N0)
        run.world.crash(N3)
        run.coordinator.suspect(N3)
        orders = run.coordinator.roster.missing(spare_owners=True)
        assert [order.donor for order in orders] == [N0, N2]
        assert lacking(run) == list(range(6, 12))
        run.rest(5.0)
        assert lacking(run) == [slot for slots in orders[0].slots for slot in slots]

    run.main(main)


def test_an_order_is_abandoned_with_its_donor_and_given_to_another(world: World) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        run.epoch()
        hold_up(run, N0)
        world.crash(N3)
        run.coordinator.suspect(N3)
        run.rest(2.0)
        assert lacking(run, 3) != []
        world.pause(N0)
        run.rest(25.0)
        assert run.coordinator.roster.lost == (N3, N0)
        assert run.coordinator.roster.copies().tolist() == WHOLE
        assert run.coordinator._rereplication._under_way == set()

    run.main(main)


def test_an_order_lasts_as_long_as_it_makes_progress(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_service, "_SUPPLY_FOR", 0.0)
    monkeypatch.setattr(unit_writer, "_KEYS_AT_ONCE", 1)
    monkeypatch.setattr(rereplication, "_SUPPLY_TIMEOUT", 30.0)

    def main() -> None:
        for _ in range(3):
            run.epoch()
        hold_up(run, N0, 20.0)
        run.world.crash(N3)
        run.coordinator.suspect(N3)
        began = run.world.now
        while lacking(run):
            run.rest(1.0)
        assert run.world.now - began > 40.0
        assert run.coordinator._rereplication._avoid == {}

    run.main(main)


def test_what_fails_is_ordered_from_another_donor(world: World) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        run.epoch()
        world.cut(N0, N1)
        world.crash(N3)
        run.coordinator.suspect(N3)
        orders = run.coordinator.roster.missing(spare_owners=True)
        assert (N0, N1) in [(order.donor, order.to) for order in orders]
        run.rest(9.0)  # a link that is broken for so short a time costs no node
        assert lacking(run, 3) == [] and run.coordinator.roster.lost == (N3,)

    run.main(main)


@pytest.mark.parametrize("part", ["missing", "reached", "settle"])
def test_an_error_on_the_way_does_not_end_healing_for_good(
    run: Run, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("on the way")

    def main() -> None:
        healing_ = run.coordinator._rereplication
        run.epoch()
        run.world.crash(N3)
        with monkeypatch.context() as patch:
            patch.setattr(healing_, "heal", lambda: None)
            run.coordinator.suspect(N3)
            run.rest(1.0)
            patch.setattr(run.coordinator.roster, part, broken)
            with pytest.raises(RuntimeError):
                for order in healing_._orders()[:1]:
                    healing_._fulfil(order)
        healing_._under_way -= {(N2, N1)}  # which was not begun here
        healing_.heal()
        run.rest(1.0)
        assert run.coordinator.roster.copies().tolist() == WHOLE

    run.main(main)
