"""The coordinator with real nodes, in a simulated world in which tests inject faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from millstream.checkpoints.manifest import Staged
from millstream.coordinator import state_scan
from millstream.coordinator.failure_detector import FailureDetector
from millstream.coordinator.ledger import MissingReceiptsError
from millstream.coordinator.request_service import StaleTaskError
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.state_reader import StateReader
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.sim.workload import PLAIN
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import FetchRecord, ReportFailure
from millstream.wire.feed import (
    BrokenFeedError,
    FeedRefusedError,
    NotDeterministicError,
    RecutError,
)
from millstream.wire.membership import (
    EnterStartBarrier,
    FencedError,
    FetchAssignment,
    Heartbeat,
    Ping,
    ReportUnreachable,
)
from millstream.wire.replication import ReplicateUnit, SlotsNotHeldError
from millstream.wire.request import Request, UnknownRequestError
from tests.coordinator.clusters import N0, N1, N2, N3, SLOTS, Run
from tests.coordinator.receipts import cells


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world)


def whole(run: Run) -> None:
    """The state as users read it is the plain answer."""
    assert run.states() == run.expected()


# -- epochs ----------------------------------------------------------------------------------


def test_every_node_gets_the_first_placement(run: Run) -> None:
    run.main(lambda: None)

    placement = run.coordinator.roster.placement
    assert placement.version == 0
    for machine in run.cluster.machines.values():
        assert machine.placement == placement and machine.address(N1) == N1
        assert machine.committed == NOTHING_COMMITTED


def test_a_scan_is_of_one_epoch_while_others_are_committed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_scan, "_SLOTS_AT_ONCE", 1)  # many calls, with epochs in between

    def main() -> None:
        for _ in range(3):
            run.epoch()
        before, scan = run.expected(), StateReader(run.coordinator).items(1)
        found = dict([next(scan)])
        for key, state in scan:
            found[key] = state
            run.epoch()

        assert scan.epoch == 2 < run.coordinator.ledger.committed.epoch - 2
        assert found == before[1]
        whole(run)

    run.main(main)


def test_a_scan_continues_when_a_node_dies(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_scan, "_SLOTS_AT_ONCE", 1)

    def main() -> None:
        for _ in range(3):
            run.epoch()
        before, scan = run.expected(), StateReader(run.coordinator).items(1)
        found = dict([next(scan)])
        run.epoch()
        run.world.crash(N2)
        run.epoch()
        found.update(scan)

        assert (scan.epoch, found) == (2, before[1])

    run.main(main)


def test_scans_begin_at_once_while_epochs_follow_each_other(run: Run) -> None:
    def main() -> None:
        run.epoch()
        scans: list[tuple[int, dict[str, Any]]] = []

        def scan() -> None:
            for _ in range(80):
                scanned = StateReader(run.coordinator).items(1)
                scans.append((scanned.epoch, dict(scanned)))

        def epochs() -> None:
            while len(scans) < 80:
                run.epoch()

        for problem in run.cluster.driver.gather([scan, epochs]):
            assert problem is None, problem
        for epoch, found in scans:
            assert found == run.reference.after[epoch][1]
        assert len({epoch for epoch, _ in scans}) > 2

    run.main(main)


def test_epochs_are_committed_one_after_the_other_and_can_be_read(run: Run) -> None:
    def main() -> None:
        for epoch in range(3):
            assert run.epoch().record.at == (epoch, 0)
            whole(run)
        assert run.coordinator.ledger.committed == Commit(2, 0)
        for key, state in run.expected()[1].items():
            assert StateReader(run.coordinator).get(1, key) == state
        assert StateReader(run.coordinator).get(1, "never seen") is None

    run.main(main)


def test_state_is_read_from_a_new_owner_that_missed_the_placement(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main() -> None:
        for _ in range(3):
            run.epoch()
        run.rest(1.0)
        monkeypatch.setattr(run.coordinator, "publish_placement", lambda: None)
        run.world.crash(N0)
        run.coordinator.investigate(N0)
        for key, state in run.expected()[1].items():
            assert StateReader(run.coordinator).get(1, key) == state
        assert run.states() == run.expected()

    run.main(main, until=60.0)


def test_after_a_commit_every_backup_is_in_sync(run: Run) -> None:
    run.main(lambda: [run.epoch() for _ in range(2)])

    assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS


def test_the_result_has_a_report_of_every_node_and_the_receipts_of_every_job(run: Run) -> None:
    result = run.main(run.epoch)

    assert set(result.reports) == {N0, N1, N2}
    for job in PLAIN.jobs:
        slots = [s for r in result.receipts if r.job == job for s in r.slots]
        assert sorted(slots) == list(range(SLOTS))


def test_a_unit_has_one_owner_and_there_are_as_many_partitions_as_the_run_asks_for(
    world: World,
) -> None:
    run = Run(world, nodes=2)

    result = run.main(run.epoch)

    assert result.record.partitions == (0, 3, 6)  # three, of two owners
    for job in PLAIN.jobs:
        units = {r.slots for r in result.receipts if r.job == job}
        assert units == {range(3), range(3, 6), range(6, 12)}


def test_partitions_that_no_sink_read_are_evaluated_before_the_commit(run: Run) -> None:
    def main() -> None:
        record = run.coordinator.admit(0, 0)
        body = run.body([[("a0", 1)], [("b1", 2)]])
        with body.attempt(record) as attempt:
            run.coordinator.collect_receipts(attempt.evaluate)  # nothing was staged
        assert run.coordinator.ledger.missing() == {}

    run.main(main)
    assert run.events == ["evaluate"]


def test_a_body_that_never_feeds_cannot_commit(run: Run) -> None:
    def main() -> None:
        run.coordinator.admit(0, 0)
        evaluated: list[int] = []
        with pytest.raises(MissingReceiptsError, match="12 slots of job 'remember'"):
            run.coordinator.collect_receipts(lambda: evaluated.append(1))
        assert len(evaluated) == 3

    run.main(main)


def losing_copies(run: Run, node: NodeId) -> Callable[[], None]:
    """Let a node lose all copies that are sent to it; gives what ends that."""
    machine = run.cluster.machines[node]
    take = machine.take_copy

    def lose(copy: ReplicateUnit) -> None:
        raise FeedRefusedError("lost", stale=False)

    def end() -> None:
        machine.take_copy = take  # type: ignore[method-assign]

    machine.take_copy = lose  # type: ignore[method-assign]
    return end


def test_a_lost_copy_is_resent_before_the_commit(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.at["staged"] = losing_copies(run, N1)
        run.epoch()
        assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS
        whole(run)

    run.main(main)


def test_a_backup_that_falls_behind_is_copied_to_after_the_commit(run: Run) -> None:
    def main() -> None:
        run.epoch()
        backed_up = run.coordinator.roster.placement.fed(N1)
        end = losing_copies(run, N1)
        run.at["publish"] = lambda: counts.append(run.coordinator.roster.copy_counts())
        run.epoch()
        end()
        assert (counts[0] == np.where(backed_up, 1, 2)).all()
        run.rest(1.0)  # the coordinator's watch, which would see to it as well, comes later
        assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS
        run.world.crash(N0)
        run.world.crash(N2)
        whole(run)

    counts: list[Any] = []
    run.main(main)


# -- failures of nodes -----------------------------------------------------------------------

POINTS = ["stage", "staged", "call back", "publish"]


@pytest.mark.parametrize("durability", ["epoch", "interval"])
@pytest.mark.parametrize("point", POINTS)
def test_a_node_may_die_at_any_point_of_an_epoch(world: World, point: str, durability: Any) -> None:
    run = Run(world, durability=durability)

    def main() -> None:
        run.epoch()
        run.at[point] = lambda: world.crash(N1)
        for _ in range(3):
            run.epoch()
        assert run.coordinator.roster.dead_nodes == (N1,)
        run.rest(10.0)
        whole(run)
        assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS

    run.main(main)
    assert [epoch for epoch, _ in run.sink.published] == [0, 1, 2, 3]
    assert [outputs for _, outputs in run.sink.published] == run.reference.outputs


def test_the_commit_notices_an_owner_that_died_after_its_receipts(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.at["call back"] = lambda: take_over(run)
        result = run.epoch()
        assert result.record.try_ == 0
        whole(run)

    run.main(main)
    assert run.events.count("call back") == 2  # once in each epoch


def test_units_lost_with_their_owner_are_retried_in_the_next_try(world: World) -> None:
    run = Run(world, replicas=1)

    def main() -> None:
        run.epoch()
        for machine in run.cluster.machines.values():
            machine.take_copy = lambda copy: None  # type: ignore[method-assign]
        run.at["staged"] = lambda: world.crash(N1)
        result = run.epoch()
        assert result.record.try_ == 1, "sinks have read outputs of units that are lost"
        whole(run)

    run.main(main)
    assert run.events.count("evaluate") == 0


def take_over(run: Run) -> None:
    run.world.crash(N1)
    run.coordinator.investigate(N1)
    assert run.coordinator.ledger.missing() != {}
    with pytest.raises(MissingReceiptsError):
        run.coordinator.commit(Staged(0, "1.0"))


def test_only_the_slots_of_a_lost_node_change_owner_and_versions_grow_by_one(run: Run) -> None:
    def main() -> None:
        run.epoch()
        before = run.coordinator.roster.placement
        run.world.crash(N2)
        run.coordinator.investigate(N2)
        after = run.coordinator.roster.placement
        assert after.version == before.version + 1
        for slot in range(SLOTS):
            if before.owner(slot) == N2:
                assert after.owner(slot) == before.copies(slot)[0]
            else:
                assert after.owner(slot) == before.owner(slot)

    run.main(main)


def test_nodes_that_fail_together_are_declared_dead_together(world: World) -> None:
    run = Run(world, nodes=4, replicas=1, executors=2)

    def main() -> None:
        run.epoch()
        dead = run.cluster.executors["executor-1"]
        for node in dead:
            world.crash(node)
        run.coordinator.investigate(dead[0])
        assert set(run.coordinator.roster.dead_nodes) == set(dead)
        assert run.coordinator.roster.placement.version == 1
        run.epoch()
        whole(run)

    run.main(main)


def test_of_nodes_that_fail_together_one_investigation_pings_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(world, nodes=8, replicas=1, executors=2)

    def main() -> None:
        run.epoch()
        dead = run.cluster.executors["executor-1"]
        for node in dead:
            world.crash(node)
        pinged: list[NodeId] = []
        refuses = FailureDetector._refuses

        def noted(self: FailureDetector, node: NodeId) -> bool:
            pinged.append(node)
            return refuses(self, node)

        monkeypatch.setattr(FailureDetector, "_refuses", noted)
        run.cluster.driver.gather([partial(run.coordinator.investigate, node) for node in dead])
        assert set(run.coordinator.roster.dead_nodes) == set(dead)
        assert run.coordinator.roster.placement.version == 1
        assert max(Counter(pinged).values()) == 2  # a second time, in case that more have died
        run.epoch()
        whole(run)

    run.main(main)


def test_nodes_that_fall_silent_together_are_declared_dead_together(world: World) -> None:
    run = Run(world, nodes=8, replicas=1, executors=2)

    def main() -> None:
        run.epoch()
        silent = run.cluster.executors["executor-1"]
        for node in silent:
            world.pause(node)
        run.cluster.driver.gather([partial(run.coordinator.investigate, node) for node in silent])
        assert set(run.coordinator.roster.dead_nodes) == set(silent)
        assert run.coordinator.roster.placement.version <= 2
        run.epoch()
        whole(run)

    run.main(main)


def test_a_node_that_is_silent_for_a_while_is_not_declared_dead(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.world.pause(N1)
        run.world.at(6.0, lambda: run.world.resume(N1))
        run.coordinator.investigate(N1)
        assert run.coordinator.roster.dead_nodes == () and run.world.now > 6.0
        run.epoch()
        whole(run)

    run.main(main)


def test_a_node_that_stays_silent_is_declared_dead_and_fenced_when_it_returns(run: Run) -> None:
    def main() -> None:
        run.epoch()
        started = run.world.now
        run.world.pause(N1)
        run.coordinator.investigate(N1)
        assert run.coordinator.roster.dead_nodes == (N1,)
        assert 10.0 <= run.world.now - started < 14.0
        requests: list[Request[Any]] = [
            Heartbeat(N1),
            FetchAssignment(N1),
            ReportUnreachable(N0, N1, 1),
        ]
        for request in requests:
            with pytest.raises(FencedError):
                run.coordinator.answer(request)
        run.world.resume(N1)
        run.epoch()
        run.rest(10.0)
        assert not run.world.alive(N1)  # it got a Stop
        whole(run)

    run.main(main)


def report(run: Run, node: NodeId, by: str, seconds: float = 20.0) -> None:
    """Report a node as unreachable, once a second for so long."""
    began, rounds = run.world.now, 0
    while run.world.now - began < seconds and node in run.coordinator.roster.domains:
        rounds += 1
        run.coordinator.answer(ReportUnreachable(node, by, rounds))
        run.rest(1.0)


def test_a_node_that_peers_cannot_reach_is_fenced_if_its_slots_have_other_copies(
    run: Run,
) -> None:
    def main() -> None:
        run.epoch()
        report(run, N1, N0, seconds=9.0)
        assert not run.coordinator.roster.dead_nodes
        report(run, N1, N0)
        assert run.coordinator.roster.dead_nodes == (N1,)
        assert run.coordinator.overview().fenced_alive == (N1,)
        run.epoch()
        whole(run)

    run.main(main)


def test_many_reports_at_once_do_not_fence_a_node_that_answers(run: Run) -> None:
    def main() -> None:
        run.epoch()
        for rounds in range(200):
            run.coordinator.answer(ReportUnreachable(N1, N0, rounds))
        assert run.coordinator.roster.dead_nodes == ()

    run.main(main)


def test_a_node_with_the_only_copy_is_not_fenced_if_peers_cannot_reach_it(world: World) -> None:
    run = Run(world, replicas=0)

    def main() -> None:
        run.epoch()
        report(run, N1, N0)
        assert run.coordinator.roster.dead_nodes == ()
        assert run.coordinator.overview().slow == (N1,)
        whole(run)

    run.main(main)


def test_a_node_is_not_fenced_if_its_peers_do_not_answer(
    world: World,
) -> None:
    run = Run(world, nodes=2)

    def main() -> None:
        run.epoch()
        report(run, N1, N0, seconds=9.5)
        world.pause(N0)
        run.coordinator.answer(ReportUnreachable(N1, N0, 99))
        assert run.coordinator.roster.dead_nodes == ()
        world.resume(N0)
        run.epoch()
        whole(run)

    run.main(main)


def test_a_node_that_reaches_no_peer_is_fenced_and_not_the_others(world: World) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        run.epoch()
        for rounds in range(1, 16):
            with suppress(FencedError):
                for other in (N0, N2, N3):
                    run.coordinator.answer(ReportUnreachable(other, N1, rounds))
            run.rest(1.0)
        assert run.coordinator.roster.dead_nodes == (N1,)
        run.epoch()
        whole(run)

    run.main(main)


def test_at_most_one_living_node_is_fenced_for_each_replica_until_copies_are_complete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(world, nodes=4, replicas=1)
    monkeypatch.setattr(run.coordinator._rereplication, "begin", lambda: None)

    def main() -> None:
        run.epoch()
        for node in (N0, N1, N2, N3):
            report(run, node, "task 1")
        assert len(run.coordinator.roster.dead_nodes) == 1

    run.main(main)


def test_a_silent_node_with_the_only_copies_gets_a_longer_timeout(world: World) -> None:
    run = Run(world, replicas=0)

    def main() -> None:
        run.epoch()
        world.pause(N1)
        world.at(25.0, lambda: world.resume(N1))
        run.coordinator.investigate(N1)
        assert run.coordinator.roster.dead_nodes == () and world.now > 25.0
        run.epoch()
        whole(run)

    run.main(main)


def test_no_node_is_fenced_if_none_answers(world: World) -> None:
    run = Run(world, replicas=2)

    def main() -> None:
        run.epoch()
        for node in (N0, N1, N2):
            world.cut("driver", node)
        run.rest(20.0)
        assert run.coordinator.roster.dead_nodes == ()
        for node in (N0, N1, N2):
            world.mend("driver", node)
        run.epoch()
        whole(run)

    run.main(main)


def test_a_node_without_a_neighbour_is_watched_by_the_coordinator(world: World) -> None:
    run = Run(world, nodes=2)

    def main() -> None:
        run.epoch()
        for node in (N0, N1):
            world.cut(node, "driver")  # no node can report it
        world.crash(N1)
        run.rest(8.0)
        assert run.coordinator.roster.dead_nodes == (N1,)

    run.main(main)


def test_nodes_that_answer_other_calls_are_not_pinged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pinged = run.coordinator.rpc.call, list[NodeId]()

    def call(node: NodeId, request: Request[Any], timeout: float = 5.0) -> Any:
        if isinstance(request, Ping):
            pinged.append(node)
        return real(node, request, timeout)

    def main() -> None:
        run.epoch()
        monkeypatch.setattr(run.coordinator.rpc, "call", call)
        for _ in range(10):
            run.rest(0.5)
            run.epoch()
        assert not pinged
        run.rest(5.0)
        assert set(pinged) == {N0, N1, N2}

    run.main(main)


def test_losing_the_last_complete_copy_ends_the_run_with_state_lost(
    world: World,
) -> None:
    run = Run(world, replicas=0)

    def main() -> None:
        run.epoch()
        world.crash(N1)
        with pytest.raises(StateLostError):
            run.epoch()
        lost = run.coordinator.state_lost
        assert isinstance(lost, StateLostError) and lost.nodes == (N1,)
        assert run.coordinator.failure() is lost
        requests: list[Request[Any]] = [FetchRecord(1, 0), ReportUnreachable(N2, "task 1", 1)]
        for request in requests:
            with pytest.raises(StateLostError):
                run.coordinator.answer(request)

    run.main(main)


def test_a_copy_completed_since_the_last_commit_counts_when_a_node_dies(
    run: Run,
) -> None:
    def main() -> None:
        run.epoch()
        roster = run.coordinator.roster
        roster.set_in_sync(cells(roster, {n: roster.placement.owned(n) for n in roster.nodes}))
        assert not roster.survives_without([N1])  # as far as is known
        run.world.crash(N1)
        run.coordinator.investigate(N1)
        assert roster.dead_nodes == (N1,)
        whole(run)

    run.main(main)


def test_new_copies_are_made_between_epochs_and_survive_the_next_loss(world: World) -> None:
    run = Run(world, nodes=4)

    def main() -> None:
        for victim in (N3, N1, N0):
            run.epoch()
            world.crash(victim)
            run.coordinator.investigate(victim)
            run.rest(3.0)
            if len(run.coordinator.roster.nodes) > 1:
                assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS
        run.epoch()
        whole(run)

    run.main(main)


def test_a_node_that_missed_the_first_ring_joins_after_a_takeover(run: Run) -> None:
    def main() -> None:
        run.world.mend("driver", N1)
        run.world.crash(N0)
        run.coordinator.investigate(N0)
        run.epoch()
        whole(run)

    run.world.cut("driver", N1)
    run.main(main, until=60.0)


def test_the_watch_survives_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("on the way")

    def main() -> None:
        run.epoch()
        with monkeypatch.context() as patch:
            patch.setattr(run.coordinator.commits, "poll", broken)
            run.rest(5.0)
        for node in (N0, N2):
            run.world.cut(node, "driver")  # no node can report it
        run.world.crash(N1)
        run.rest(8.0)
        assert run.coordinator.roster.dead_nodes == (N1,)

    run.main(main)


def test_a_node_that_answers_with_an_error_is_alive(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run.coordinator.rpc.call

    def call(node: NodeId, request: Request[Any], timeout: float = 5.0) -> Any:
        if (node, request) == (N1, Ping()):
            raise BrokenFeedError("an error of its own")
        return real(node, request, timeout)

    def main() -> None:
        run.epoch()
        monkeypatch.setattr(run.coordinator.rpc, "call", call)
        run.coordinator.investigate(N1)
        assert run.coordinator.roster.dead_nodes == ()

    run.main(main)


def test_a_waiting_read_logs_its_reason_and_ends_with_the_run(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def require_current(slots: range) -> None:
        raise SlotsNotHeldError("it replays logs")

    def main() -> None:
        run.epoch()
        run.cluster.machines[N1].require_current = require_current  # type: ignore[method-assign]
        run.world.at(30.0, lambda: setattr(run.coordinator, "is_closed", True))
        with pytest.raises(RunEndedError):
            StateReader(run.coordinator).get(1, "a0")

    run.main(main)
    assert "a read of state has been waiting" in caplog.text and "it replays" in caplog.text


# -- moves -----------------------------------------------------------------------------------


def test_slots_move_to_a_backup_with_their_state_at_the_next_epoch(run: Run) -> None:
    def main() -> None:
        run.epoch()
        slots = run.owned_by(N0)
        to = run.coordinator.roster.placement.copies(slots[0])[0]
        run.at["staged"] = lambda: run.coordinator.scaling.move(slots, to)
        run.epoch()
        assert run.owned_by(N0) == slots
        run.epoch()
        assert run.owned_by(N0) == [] and set(slots) < set(run.owned_by(to))
        whole(run)
        run.rest(5.0)
        assert run.coordinator.roster.copy_counts().tolist() == [2] * SLOTS

    run.main(main)


# -- tasks and the end -----------------------------------------------------------------------


def test_tasks_get_the_record_of_the_try_under_way_only(run: Run) -> None:
    def main() -> None:
        answer = run.coordinator.answer
        with pytest.raises(StaleTaskError):
            answer(FetchRecord(0, 0))
        record = run.coordinator.admit(0, 5)
        assert answer(FetchRecord(0, 0)) is record
        assert answer(FetchRecord(0, 0, record.routing)) is record.update
        run.coordinator.retry()
        with pytest.raises(StaleTaskError):
            answer(FetchRecord(0, 0))
        assert answer(FetchRecord(0, 1, record.routing)).try_ == 1

    run.main(main)


def test_only_failures_of_the_try_under_way_are_reported(run: Run) -> None:
    def main() -> None:
        coordinator = run.coordinator
        first, second = BrokenFeedError("first"), BrokenFeedError("second")
        coordinator.answer(ReportFailure(0, 0, first))
        assert coordinator.failure() is None
        coordinator.admit(0, 0)
        coordinator.answer(ReportFailure(0, 1, first))
        assert coordinator.failure() is None
        for problem in (first, second):
            coordinator.answer(ReportFailure(0, 0, problem))
        assert coordinator.failure() is second
        coordinator.retry()
        assert coordinator.failure() is None

    run.main(main)


def test_a_takeover_that_cuts_units_makes_differing_input_downstream_retryable(
    world: World,
) -> None:
    run = Run(world, nodes=4, replicas=2)

    def main() -> None:
        coordinator = run.coordinator
        behind, first = (NotDeterministicError(job, 0, "0 to 3") for job in ("add-up", "remember"))
        coordinator.admit(0, 0)
        assert not coordinator.is_retryable(behind)
        run.world.crash(N1)
        coordinator.investigate(N1)
        assert coordinator.ledger.taken_over
        assert not coordinator.is_retryable(behind), "its slots went to one node, as they were"

        owned = run.owned_by(N2)
        in_sync = {node: coordinator.roster.in_sync(node) for node in coordinator.roster.nodes}
        in_sync[N3][owned[0]] = False
        coordinator.roster.set_in_sync(cells(coordinator.roster, in_sync))
        run.world.crash(N2)
        coordinator.investigate(N2)
        assert coordinator.is_retryable(behind)
        assert not coordinator.is_retryable(first), "its input comes from sources alone"
        assert not coordinator.is_retryable(ValueError("x"))
        coordinator.answer(ReportFailure(0, 0, behind))
        assert coordinator.is_retryable(RuntimeError("Spark's words for it"))
        coordinator.retry()
        assert not coordinator.is_retryable(behind)

    run.main(main)


def test_units_that_cannot_be_compared_are_retryable(run: Run) -> None:
    def main() -> None:
        run.coordinator.admit(0, 0)
        recut = RecutError("remember", 0, "0 to 3")
        assert run.coordinator.is_retryable(recut)
        for problem in (recut, BrokenFeedError("another task's")):
            run.coordinator.answer(ReportFailure(0, 0, problem))
        assert run.coordinator.is_retryable(RuntimeError("Spark's words for it"))

    run.main(main)


def test_the_start_barrier_counts_each_node_once(run: Run) -> None:
    assert [run.coordinator.answer(EnterStartBarrier(node)) for node in (N0, N1, N0)] == [1, 2, 2]


def test_every_request_of_the_wire_is_served_by_nodes_or_by_the_coordinator(run: Run) -> None:
    nodes = run.cluster.services[N0]._dispatch._handlers.keys()
    coordinator = run.coordinator._requests._dispatch._handlers.keys()
    defined = {r for r in Request.__subclasses__() if r.__module__.startswith("millstream.wire.")}

    assert nodes | coordinator == defined and not nodes & coordinator


def test_a_request_for_a_node_is_rejected(run: Run) -> None:
    with pytest.raises(UnknownRequestError, match="the coordinator does not serve Ping"):
        run.coordinator.answer(Ping())
    run.coordinator.answer(Heartbeat(N0))


def test_close_stops_all_nodes_and_rejects_reads(run: Run) -> None:
    def main() -> None:
        run.epoch()
        run.coordinator.close()
        run.coordinator.close()
        run.rest(1.0)
        assert not any(run.world.alive(node) for node in (N0, N1, N2))
        with pytest.raises(RunEndedError):
            StateReader(run.coordinator).get(1, "a0")
        with pytest.raises(RunEndedError):
            next(StateReader(run.coordinator).items(1))
        run.coordinator.investigate(N0)  # a closed run investigates no node
        assert run.coordinator.roster.dead_nodes == ()

    run.main(main)


def test_close_before_begin_does_nothing(run: Run) -> None:
    run.coordinator.close()
