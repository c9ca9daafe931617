"""Nodes that join a running workflow: launches, tickets, and who is rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.coordinator.launch_tickets import VALID
from millstream.coordinator.scaling import Member
from millstream.elastic.pool_plan import LaunchPlan
from millstream.node.joining import join
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim import World
from millstream.sim.cluster import DRIVER
from millstream.wire.membership import Assign, ClaimLaunch, FencedError, Heartbeat, Join
from tests.coordinator.clusters import N2, Run

NEW = NodeId("new")
CLAIM = ClaimLaunch("executor-0", "host")


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world)


def allow(run: Run, total: int, **limits: int) -> None:
    named = {name.replace("_", "-"): limit for name, limit in limits.items()}
    run.coordinator.launches.allow(LaunchPlan(total=total, limits=named))


def claimed(run: Run) -> str:
    """A ticket for one node."""
    allow(run, 1, executor_0=1)
    ticket = run.coordinator.answer(CLAIM)
    assert ticket is not None
    return ticket


def joining(ticket: str, node: NodeId = NEW) -> Join:
    return Join(node, node, 77, Domain("zone", "host", "executor-0"), ticket)


# -- launches --------------------------------------------------------------------------------


def test_tasks_claim_launches_for_their_executor_until_none_are_left(run: Run) -> None:
    def main() -> None:
        launches = run.coordinator.launches
        assert run.coordinator.answer(CLAIM) is None
        allow(run, 3, executor_0=1, executor_1=2)
        tickets = [run.coordinator.answer(CLAIM) for _ in range(3)]

        assert tickets[0] is not None and tickets[1:] == [None, None]
        assert dict(launches.view().starting) == {"executor-0": 1}
        assert launches.view().unclaimed == 2
        other = run.coordinator.answer(ClaimLaunch("executor-1", "host"))
        assert other is not None and other != tickets[0]
        assert run.coordinator.answer(ClaimLaunch("executor-2", "host")) is None

    run.main(main)


def test_a_plan_made_before_the_last_claim_is_dropped(run: Run) -> None:
    def main() -> None:
        launches = run.coordinator.launches
        seen = launches.view()
        claimed(run)
        launches.allow(LaunchPlan(total=1, limits={"executor-0": 1}), seen)
        assert run.coordinator.answer(CLAIM) is None

        launches.allow(LaunchPlan(total=1, limits={"executor-0": 1}), launches.view())
        assert run.coordinator.answer(CLAIM) is not None

    run.main(main)


# -- tickets ---------------------------------------------------------------------------------


def test_a_node_with_a_ticket_becomes_a_member_and_takes_part(run: Run) -> None:
    def main() -> None:
        run.epoch()
        member = run.cluster._start_node()
        node = member.node
        request = Join(node, member.address, 77, member.domain, claimed(run))
        run.coordinator.scaling.scale_to(4)

        assignment = run.coordinator.answer(request)
        run.cluster.services[node].answer(assignment)

        assert assignment.committed == run.coordinator.ledger.committed
        assert run.coordinator.launches.view().starting == {}
        assert run.coordinator.overview().pids[node] == 77
        run.coordinator.answer(Heartbeat(node))
        while not run.owned_by(node):
            run.epoch()
            run.rest(1.0)
        run.epoch()
        assert run.states() == run.expected()

    run.main(main)


def test_a_node_whose_answer_was_lost_gets_it_again(run: Run) -> None:
    def main() -> None:
        request = joining(claimed(run))
        first = run.coordinator.answer(request)

        assert run.coordinator.answer(request).placement == first.placement
        assert [node for node in run.coordinator.roster.nodes if node == NEW] == [NEW]

    run.main(main)


def test_a_ticket_admits_one_node(run: Run) -> None:
    """As when Spark runs the task that starts it twice."""

    def main() -> None:
        ticket = claimed(run)
        run.coordinator.answer(joining(ticket))

        with pytest.raises(FencedError, match="another node joined with this ticket"):
            run.coordinator.answer(joining(ticket, NodeId("twin")))
        with pytest.raises(FencedError):
            run.coordinator.answer(Heartbeat(NodeId("twin")))
        assert "twin" not in run.coordinator.roster.nodes

    run.main(main)


def test_a_node_without_a_ticket_is_rejected(run: Run) -> None:
    def main() -> None:
        with pytest.raises(FencedError):
            run.coordinator.answer(joining("a guess"))

    run.main(main)


def test_a_ticket_that_nobody_uses_expires_and_is_reported_once(run: Run) -> None:
    def main() -> None:
        launches, ticket = run.coordinator.launches, claimed(run)
        run.rest(VALID - 1)
        assert launches.remove_expired() == []
        run.rest(1.0)

        with pytest.raises(FencedError, match="expired"):
            run.coordinator.answer(joining(ticket))
        [expired] = launches.remove_expired()
        assert (expired.executor, expired.host) == ("executor-0", "host")
        assert launches.remove_expired() == []
        assert launches.view().starting == {}

    run.main(main)


def test_a_node_that_was_declared_dead_cannot_join_again(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.world.crash(N2)
        run.coordinator.investigate(N2)
        ticket = claimed(run)

        with pytest.raises(FencedError, match="was declared dead"):
            run.coordinator.answer(joining(ticket, N2))
        run.coordinator.answer(joining(ticket))  # the ticket is as good as before

    run.main(main)


def test_nobody_joins_a_run_that_has_ended(run: Run) -> None:
    def main() -> None:
        ticket = claimed(run)
        run.coordinator.close()

        with pytest.raises(FencedError, match="the run has ended"):
            run.coordinator.answer(joining(ticket))

    run.main(main)


def test_a_ticket_of_a_node_that_is_not_taken_is_spent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(member: Member) -> None:
        raise FencedError("not wanted")

    def main() -> None:
        ticket = claimed(run)
        monkeypatch.setattr(run.coordinator.scaling, "join", refuse)
        with pytest.raises(FencedError, match="not wanted"):
            run.coordinator.answer(joining(ticket))

        assert run.coordinator.launches.view().starting == {}

    run.main(main)


# -- the node's side -------------------------------------------------------------------------


def joined(run: Run, ticket: str) -> list[Assign | None]:
    """What a node in a process of its own gets for its request, when it has an answer."""
    answers: list[Assign | None] = []
    net = run.world.process(NEW)
    net.spawn(lambda: answers.append(join(net, DRIVER, joining(ticket))), "join")
    return answers


def test_a_node_asks_again_until_the_coordinator_is_reached(run: Run) -> None:
    def main() -> None:
        run.world.cut(NEW, DRIVER)
        answers = joined(run, claimed(run))
        run.rest(12.0)
        assert answers == []
        run.world.mend(NEW, DRIVER)
        run.rest(12.0)

        [answer] = answers
        assert answer is not None

    run.main(main)


def test_a_node_that_is_rejected_has_to_end(run: Run) -> None:
    def main() -> None:
        answers = joined(run, "a guess")
        run.rest(1.0)
        assert answers == [None]

    run.main(main)


def test_nodes_that_join_together_are_given_slots_together(run: Run) -> None:
    def main() -> None:
        run.epoch()
        roster = run.coordinator.roster
        run.coordinator.scaling.scale_to(6)
        before = roster.placement.version
        for _ in range(3):
            run.cluster.join()
        assert roster.placement.version == before and len(roster.standby) == 3
        run.rest(0.3)
        assert roster.placement.version == before + 1 and len(roster.active) == 6
        while roster.pending:
            run.rest(0.5)
        assert {len(run.owned_by(node)) for node in roster.active} == {2}

    run.main(main)
