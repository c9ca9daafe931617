"""What users ask of a running workflow: its nodes, events, and changes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.control_service import ControlService, resolved
from millstream.coordinator.overview import Overview
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunEndedError
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.wire.control import EventPage
from millstream.wire.persistence import NotReadyError
from tests.coordinator.clusters import N0, N1, N2, SLOTS, Run

ALL = float("-inf")


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world)


Asked = Callable[[ControlService], None]


def ask(run: Run, asked: Asked) -> Overview:
    """Ask for a change; the run when it was accepted."""
    asked(run.coordinator.control)
    return describe(run)


def describe(run: Run) -> Overview:
    return run.coordinator.overview()


def scaling(nodes: int) -> Asked:
    return lambda control: control.scale(nodes)


def rebalancing(control: ControlService) -> None:
    control.rebalance()


def draining(node: str) -> Asked:
    return lambda control: control.drain(node)


def moving(slots: Sequence[range], to: str) -> Asked:
    # Not expanded before it is checked: a range may be long.
    return lambda control: control.move(chain.from_iterable(slots), to)


def owned(run: Run) -> dict[NodeId, list[int]]:
    """The slots of each node that owns any."""
    shares = {node: run.owned_by(node) for node in run.coordinator.roster.nodes}
    return {node: slots for node, slots in shares.items() if slots}


def settle(run: Run) -> Overview:
    """Run epochs until no change is under way."""
    for _ in range(20):
        if describe(run).is_settled:
            break
        run.epoch()
        run.rest(1.0)
    return describe(run)


# -- looking ---------------------------------------------------------------------------------


def test_an_overview_has_the_nodes_with_their_slots_and_copies(run: Run) -> None:
    def main() -> None:
        run.epoch()
        now, nodes = describe(run), describe(run).nodes()

        assert (now.committed, now.durable) == (0, None)
        assert (now.target, now.active, now.pending, now.is_settled) == (3, 3, 0, True)
        assert [node.node for node in nodes] == [N0, N1, N2]
        assert [node.slots for node in nodes] == [4, 4, 4]
        copies = [int(run.coordinator.roster.placement.fed(n).sum()) for n in (N0, N1, N2)]
        assert [node.copies for node in nodes] == copies and sum(copies) == SLOTS
        assert [node.in_sync for node in nodes] == copies
        assert {node.executor for node in nodes} == {f"executor-{n}" for n in range(3)}
        assert (now.lost, now.slow, now.waits) == ((), (), ())

    run.main(main)


def test_an_overview_names_lost_nodes(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.world.crash(N2)
        run.epoch()

        now = describe(run)
        assert (now.lost, [node.node for node in now.nodes()]) == ((N2,), [N0, N1])
        assert (now.target, now.active, now.is_settled) == (3, 2, False)

    run.main(main)


def test_events_are_those_after_a_time_and_read_by_another_clock(run: Run) -> None:
    def main() -> EventPage:
        ask(run, draining(N0))
        settle(run)
        return run.coordinator.control.events(ALL)

    page = run.main(main)

    times = [event.time for event in page.events]
    assert page.events[0].kind == "drain" and times == sorted(times)
    later = run.more(lambda: run.coordinator.control.events(times[0]))
    assert later.events == tuple(event for event in page.events if event.time > times[0])
    assert 0 < len(later.events) < len(page.events)
    by_clock = page.by_clock(page.now + 1000.0)
    assert [event.time for event in by_clock] == pytest.approx([time + 1000.0 for time in times])


# -- changing --------------------------------------------------------------------------------


def test_a_move_to_a_backup_is_done_at_once_between_epochs(run: Run) -> None:
    def main() -> None:
        run.epoch()
        placement = run.coordinator.roster.placement
        slot = run.owned_by(N0)[0]
        [backup] = placement.copies(slot)

        now = ask(run, moving((range(slot, slot + 1),), backup))

        assert now.pending == 0 and now.is_settled
        assert slot in owned(run)[backup]
        assert now.placement.version > placement.version

    run.main(main)


def test_a_move_is_pending_while_an_epoch_is_under_way(run: Run) -> None:
    def main() -> None:
        run.epoch()
        slot = run.owned_by(N0)[0]
        [backup] = run.coordinator.roster.placement.copies(slot)
        seen: list[Overview] = []

        def move() -> None:
            seen.append(ask(run, moving((range(slot, slot + 1),), backup)))

        run.at["staged"] = move
        run.epoch()

        assert (seen[0].pending, seen[0].is_settled) == (1, False)
        assert settle(run).pending == 0
        assert slot in owned(run)[backup]
        assert run.states() == run.expected()

    run.main(main)


def test_a_drained_node_leaves_and_is_not_replaced(run: Run) -> None:
    def main() -> None:
        run.epoch()
        first = ask(run, draining("node-1"))
        assert first.roles[N1] == "leaving"
        now = settle(run)

        assert ([node.node for node in now.nodes()], now.target) == ([N0, N2], 2)
        assert run.states() == run.expected()

    run.main(main)


def test_scaling_sets_the_target_and_waits_for_nodes(run: Run) -> None:
    def main() -> None:
        run.epoch()
        now = ask(run, scaling(4))
        assert (now.target, now.active, now.is_settled) == (4, 3, False)
        run.cluster.join()
        now = settle(run)

        assert (now.target, now.active, now.is_settled) == (4, 4, True)
        assert {len(slots) for slots in owned(run).values()} == {3}

    run.main(main)


def test_rebalancing_levels_the_shares(run: Run) -> None:
    def main() -> None:
        run.epoch()
        ask(run, moving((range(SLOTS),), N0))
        settle(run)
        assert len(owned(run)[N0]) == SLOTS
        ask(run, rebalancing)
        settle(run)

        assert {len(slots) for slots in owned(run).values()} == {4}

    run.main(main)


def test_a_rebalance_that_is_asked_for_during_an_epoch_is_not_done_before_it_begins(
    run: Run,
) -> None:
    def main() -> None:
        run.epoch()
        ask(run, moving((range(SLOTS),), N0))
        settle(run)
        seen: list[Overview] = []
        run.at["staged"] = lambda: seen.append(ask(run, rebalancing))
        run.epoch()

        assert (seen[0].pending, seen[0].is_settled) == (0, False)
        assert settle(run).is_settled
        assert {len(slots) for slots in owned(run).values()} == {4}

    run.main(main)


# -- what is rejected ------------------------------------------------------------------------

MANY = 10**12  # slots that must not be expanded before they are checked


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (scaling(0), f"from 1 to {SLOTS}"),
        (scaling(SLOTS + 1), f"from 1 to {SLOTS}"),
        (scaling(2.5), f"from 1 to {SLOTS}"),  # type: ignore[arg-type]
        (scaling(True), f"from 1 to {SLOTS}"),
        (draining("nobody"), "no node 'nobody'; the nodes are node-0, node-1, node-2"),
        (draining(""), "no node ''; the nodes are node-0, node-1, node-2"),
        (draining("node-"), "several nodes begin with 'node-': node-0, node-1, node-2"),
        (moving((range(2),), "x"), "no active node 'x'; the active nodes are node-0, node-1"),
        (moving((range(MANY),), "node-0"), f"from 0 to {SLOTS - 1}, got {SLOTS}"),
        (moving((range(-3, 2),), "node-0"), f"from 0 to {SLOTS - 1}, got -3"),
        (moving((range(2), range(SLOTS, MANY)), "node-0"), f"got {SLOTS}"),
    ],
)
def test_wrong_values_are_rejected_with_the_allowed_ones(
    run: Run, request_: Asked, message: str
) -> None:
    def main() -> None:
        before = describe(run)
        with pytest.raises(ConfigError, match=message):
            ask(run, request_)
        assert describe(run) == before
        assert run.coordinator.events.all() == []

    run.main(main)


@given(
    nodes=st.sets(st.text("ab", min_size=1, max_size=4), min_size=1).map(sorted),
    name=st.text("ab", max_size=4),
)
def test_a_node_is_named_by_its_id_or_by_a_beginning_that_no_other_has(
    nodes: list[str], name: str
) -> None:
    known = [NodeId(node) for node in nodes]
    beginning = [node for node in nodes if node.startswith(name)]

    if name in nodes or (name and len(beginning) == 1):
        assert resolved(name, known, "node") == (name if name in nodes else beginning[0])
    else:
        with pytest.raises(ConfigError, match="several nodes" if name and beginning else "no node"):
            resolved(name, known, "node")


def test_the_last_active_node_cannot_be_drained(world: World) -> None:
    run = Run(world, nodes=1, replicas=0)

    def main() -> None:
        with pytest.raises(ConfigError, match="last active"):
            ask(run, draining(N0))

    run.main(main)


def test_a_standby_node_gets_no_slots_by_hand(run: Run) -> None:
    def main() -> None:
        run.cluster.join()
        with pytest.raises(ConfigError, match="no active node 'node-3'"):
            ask(run, moving((range(2),), "node-3"))

    run.main(main)


def test_a_run_that_is_starting_asks_for_patience(run: Run) -> None:
    changes = (scaling(2), rebalancing, draining("n"), moving((), "n"))
    for request in changes:
        with pytest.raises(NotReadyError, match="retry"):
            ask(run, request)
    assert run.coordinator.control.events(ALL).events == ()


def test_a_run_that_has_ended_cannot_be_changed(run: Run) -> None:
    def main() -> None:
        run.coordinator.close()
        with pytest.raises(RunEndedError):
            ask(run, scaling(2))
        assert describe(run).target == 3

    run.main(main)


def test_a_run_that_lost_its_state_tells_so(world: World) -> None:
    run = Run(world, nodes=2, replicas=0)

    def main() -> None:
        run.epoch()
        run.world.crash(N1)
        with pytest.raises(StateLostError):
            run.epoch()
        with pytest.raises(StateLostError):
            ask(run, rebalancing)
        assert "lost" in str(run.coordinator.state_lost)

    run.main(main)
