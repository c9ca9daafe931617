"""Node services that speak to each other in a simulated world, with a driver that only tells."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pytest

from millstream.node import peers as peers_module
from millstream.node import slot_store
from millstream.node.durability import unit_writer as keeping_module
from millstream.node.service import BackgroundTaskError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.state.pickling import loads
from millstream.state.records import decode_records
from millstream.wire.messages import (
    Assign,
    BrokenFeedError,
    Commit,
    CopyOrder,
    FeedRefusedError,
    FencedError,
    NodeReport,
    NotReadyError,
    OpenScan,
    ScanBrokenError,
    SlotsNotHeldError,
    UnitCopy,
)
from millstream.wire.net import Delivery
from millstream.work.feeder import end_of
from millstream.work.keyed_reducers import FunctionReducing
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import MEMORY, Scene, rows_of


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


# -- feeds and copies ------------------------------------------------------------------------


def test_when_a_feed_is_answered_its_copies_are_with_the_backups(scene: Scene) -> None:
    assert sorted(scene.feed(0, [("a", 1), ("b", 2)])) == [("a", [1]), ("b", [2])]

    [receipt] = scene.receipts(ME, 0).receipts
    [copy] = scene.receipts(OTHER, 0).copies
    assert (copy.slots, copy.digest) == (ALL, receipt.digest)
    assert scene.receipts(THIRD, 0).copies == ()
    assert scene.receipts(ME, 0).report == NodeReport({JOB: 0}, MEMORY, 0)


def test_without_backups_nothing_is_serialised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]))

    def encode(*_: object) -> bytes:
        raise AssertionError("encoded for nobody")

    monkeypatch.setattr(type(scene.machines[ME].store.reducing[JOB]), "encode", encode)

    assert scene.feed(0, [("a", 1)]) == [("a", [1])]


def test_attempts_side_by_side_get_the_same_outputs_and_count_once(scene: Scene) -> None:
    rows, header = rows_of(MANY), scene.header(0)

    def attempt() -> list[pa.RecordBatch]:
        return scene.task.feed(Delivery(ME, header), [], rows, end_of(rows), lambda: False)

    found = scene.run(lambda: scene.task.gather([attempt] * 3))

    decoded = [[r for b in outputs for r in decode_records(b)] for outputs in found]  # type: ignore[union-attr]
    assert len(decoded[0]) == len(MANY) and decoded[1:] == decoded[:1] * 2
    assert len(scene.receipts(ME, 0).receipts) == 1


def test_a_feed_that_breaks_off_before_its_end_marker_is_void(scene: Scene) -> None:
    batches = rows_of(MANY).to_batches()

    def broken() -> None:
        scene.services[ME].exchange(scene.header(0), iter(batches))

    with pytest.raises(BrokenFeedError):
        scene.run(broken, ME)
    assert scene.receipts(ME, 0).receipts == ()


def test_with_logs_backups_are_fed_and_the_owner_copies_nothing(world: World) -> None:
    scene = Scene(world, durability="interval")

    scene.feed(0, MANY)
    scene.rest(0.5)

    assert len(scene.receipts(OTHER, 0).copies) == 1
    assert scene.receipts(OTHER, 0).report.log_bytes > 0
    assert "copy" not in {action for _, action in scene.calls}


def test_a_node_learns_from_a_feed_which_ring_and_commit_are_in_force(scene: Scene) -> None:
    scene.feed(0, [("a", 1)])
    scene.placement, scene.committed = placed([ME], 1, other=ALL, third=ALL), scene.commit_of(0)

    assert scene.feed(1, [("a", 2)]) == [("a", [1, 2])]

    # The backups learn it from the copies.
    assert {machine.version for machine in scene.machines.values()} == {1}
    assert scene.machines[OTHER].committed == Commit(0, 0)
    assert scene.asked.count(("assign", ME)) == 1


def test_a_backup_that_is_gone_is_reported_once_a_round_until_it_answers(scene: Scene) -> None:
    scene.world.cut(ME, OTHER)
    for attempt in range(3):
        scene.feed(0, MANY, try_=attempt)
    found = scene.suspicions()
    assert found == [(OTHER, ME, at + 1) for at in range(len(found))] and len(found) >= 3

    scene.world.heal(ME, OTHER)
    scene.feed(0, MANY, try_=3)
    scene.rest(20.0)
    before = len(scene.suspicions())
    scene.world.crash(OTHER)
    scene.feed(0, MANY, try_=4)
    scene.rest(0.5)

    assert scene.suspicions()[before] == (OTHER, ME, 1)


def takes_slowly(scene: Scene, seconds: list[float]) -> None:
    """Let a backup need so long for its next copies; it answers its pings meanwhile."""
    machine = scene.machines[OTHER]
    take = machine.take_copy

    def slowly(copy: UnitCopy) -> None:
        if seconds:
            scene.world.wait("for a busy core", seconds.pop(0))
        take(copy)

    machine.take_copy = slowly  # type: ignore[method-assign]


def test_a_backup_that_is_slow_is_reported_as_slow_and_sent_its_copy_again(scene: Scene) -> None:
    takes_slowly(scene, [7.0])

    scene.feed(0, MANY)

    assert len(scene.receipts(OTHER, 0).copies) == 1
    assert scene.suspicions() == [] and [body[:2] for body in scene.slow()] == [(OTHER, ME)]
    assert scene.calls.count((OTHER, "copy")) == 2


def test_a_copy_has_time_in_proportion_to_its_bytes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "_LEAST_RATE", 10)  # bytes per second
    takes_slowly(scene, [7.0])

    scene.feed(0, MANY)

    assert scene.suspicions() == scene.slow() == []
    assert scene.calls.count((OTHER, "copy")) == 1


def test_calls_that_fail_side_by_side_are_one_round(world: World) -> None:
    scene = Scene(world, placed([ME], other=ALL), watch_timeout=1.0)
    world.cut(ME, OTHER)
    messages = [peers_module.Message(OTHER, "ping", None, 0)] * 20

    scene.run(lambda: scene.services[ME]._peers.send(messages), ME)
    scene.rest(1.2)

    assert [times for _, _, times in scene.suspicions()] == [1]


def test_a_node_that_hears_it_is_fenced_stops(scene: Scene) -> None:
    scene.problem = FencedError("out")
    scene.world.crash(OTHER)

    scene.feed(0, MANY)
    scene.rest(1.0)

    assert scene.stopped == [ME]


def test_a_copy_that_was_refused_is_no_reason_to_suspect_a_peer(scene: Scene) -> None:
    scene.machines[OTHER].assign(Assign(1, placed([OTHER], 1), {}))

    scene.feed(0, MANY)
    scene.rest(1.0)

    assert scene.suspicions() == []


def test_what_was_frozen_is_sent_again_to_one_peer_on_demand(world: World) -> None:
    scene = Scene(world, placed([ME], other=ALL, third=ALL))
    for peer in (OTHER, THIRD):
        world.cut(ME, peer)
    scene.feed(0, MANY)
    for peer in (OTHER, THIRD):
        world.heal(ME, peer)

    scene.call(ME, "resend", (THIRD, 0, 0))

    assert len(scene.receipts(THIRD, 0).copies) == 1 and scene.receipts(OTHER, 0).copies == ()


# -- actions ---------------------------------------------------------------------------------


def test_a_node_answers_with_its_name_and_stops_when_told(scene: Scene) -> None:
    assert scene.call(ME, "ping") == ME
    scene.call(ME, "stop")
    assert scene.stopped == [ME]
    with pytest.raises(BrokenFeedError, match="no action 'dance'"):
        scene.call(ME, "dance")


def test_state_is_read_where_it_is_owned(scene: Scene) -> None:
    scene.commit(0, [("a", 1)])

    assert loads(scene.call(ME, "get", (JOB, "a", -1))) == {"seen": [1]}
    assert loads(scene.call(OTHER, "get", (JOB, "a", -1))) is None
    assert scanned(scene, scene.committed) == {"a": {"seen": [1]}}


def scanned(scene: Scene, commit: Commit | None, node: NodeId = ME) -> dict[Any, Any]:
    """What a node says to a scan; it is begun if a commit is given."""
    if commit is not None:
        scene.call(node, "scan", OpenScan("scan", JOB, commit))
    return {key: loads(value) for key, value in scene.call(node, "items", ("scan", ALL, -1))}


def test_a_scan_sees_the_epoch_at_which_it_began(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.call(ME, "scan", OpenScan("scan", JOB, scene.committed))
    before = {key: {"seen": [value]} for key, value in MANY}

    scene.commit(1, MANY[:9])
    assert scanned(scene, None) == before
    scene.commit(2, [*MANY[5:20], ("new", 1)])
    assert scanned(scene, None) == before

    assert scanned(scene, scene.committed) == before  # the scan was opened before
    scene.call(ME, "unscan", "scan")
    with pytest.raises(ScanBrokenError):
        scanned(scene, None)
    assert scanned(scene, scene.committed)["new"] == {"seen": [1]}


def test_a_scan_goes_on_where_slots_were_taken_over(scene: Scene) -> None:
    scene.commit(0, MANY)
    for node in (ME, OTHER):
        scene.call(node, "scan", OpenScan("scan", JOB, scene.committed))
    scene.commit(1, MANY)
    scene.placement = placed([OTHER], 1)
    scene.call(OTHER, "assign", scene.assignment())

    assert scanned(scene, None, OTHER) == {key: {"seen": [value]} for key, value in MANY}


def test_a_node_that_is_past_an_epoch_opens_no_scan_of_it(scene: Scene) -> None:
    scene.commit(0, MANY)
    before = scene.committed
    scene.commit(1, MANY)

    with pytest.raises(NotReadyError):
        scanned(scene, before)


def test_a_scan_that_nobody_reads_is_given_up(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.call(ME, "scan", OpenScan("forgotten", JOB, scene.committed))
    scene.rest(100.0)

    scene.call(ME, "scan", OpenScan("scan", JOB, scene.committed))

    with pytest.raises(ScanBrokenError):
        scene.call(ME, "items", ("forgotten", ALL, -1))


# -- taking over -----------------------------------------------------------------------------


def test_logs_are_replayed_as_soon_as_a_node_is_told_that_it_owns_them(world: World) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)

    scene.call(OTHER, "assign", scene.assignment())
    scene.rest(0.5)

    assert not scene.receipts(OTHER, 1).pending
    assert scene.feed(2, [("1", 9)]) == [("1", [1, 1, 9])]


@pytest.mark.parametrize("problem", [MemoryError("no more"), BrokenFeedError("typed")])
def test_what_a_replay_ends_with_is_raised_to_whoever_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)

    def reduce(work: object) -> None:
        raise problem

    monkeypatch.setattr(scene.machines[OTHER], "reduce", reduce)
    scene.call(OTHER, "assign", scene.assignment())
    scene.rest(0.5)

    expected = BackgroundTaskError if isinstance(problem, MemoryError) else BrokenFeedError
    for action, body in [("receipts", (1, 0, -1)), ("items", ("scan", ALL, -1))]:
        with pytest.raises(expected, match=str(problem)):
            scene.call(OTHER, action, body)


def test_state_is_read_only_after_the_replay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)
    monkeypatch.setattr(scene.machines[OTHER], "next_replay", lambda: None)
    scene.call(OTHER, "assign", scene.assignment())

    with pytest.raises(SlotsNotHeldError):
        scanned(scene, scene.committed, OTHER)
    with pytest.raises(SlotsNotHeldError):
        scene.call(OTHER, "get", (JOB, "1", -1))

    monkeypatch.undo()
    scene.placement = placed([OTHER], 2)
    scene.call(OTHER, "assign", scene.assignment())
    scene.rest(0.5)
    assert loads(scene.call(OTHER, "get", (JOB, "1", -1))) == {"seen": [1]}


def test_snapshots_make_a_new_backup_a_few_keys_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping_module, "_KEYS_AT_ONCE", 10)
    scene.commit(0, MANY)
    scene.placement = placed([ME], 1, other=ALL, third=ALL)
    for node in (ME, THIRD):
        scene.call(node, "assign", scene.assignment())
    assert scene.receipts(THIRD, 0).reach == ((0, -2),)

    scene.call(OTHER, "supply", CopyOrder(1, THIRD, (LOW, HIGH), scene.committed))

    assert scene.receipts(THIRD, 0).reach == ((0, 0),)
    assert scene.held(THIRD) == {key: [value] for key, value in MANY}
    assert scene.calls.count((THIRD, "install")) >= 4


def test_an_order_of_another_incarnation_is_not_followed(scene: Scene) -> None:
    scene.commit(0, MANY)

    scene.call(ME, "supply", CopyOrder(2, OTHER, (ALL,), scene.committed))

    assert (OTHER, "install") not in scene.calls


def test_a_donor_catches_up_before_it_copies(scene: Scene) -> None:
    scene.feed(0, MANY)
    scene.placement = placed([ME], 1, other=ALL, third=ALL)

    scene.call(ME, "supply", CopyOrder(1, THIRD, (ALL,), Commit(0, 0)))
    assert scene.machines[ME].committed == Commit(0, 0)


# -- background checkpoints ------------------------------------------------------------------


def test_checkpoints_bring_backups_up_to_date_and_evict_their_logs(world: World) -> None:
    scene = Scene(world, durability="interval", checkpoint_every=2.0)
    for service in scene.services.values():
        service.start()
    scene.commit(0, MANY)
    scene.commit(1, MANY)
    assert scene.machines[OTHER].log_bytes > 0

    scene.rest(5.0)

    assert scene.machines[OTHER].log_bytes == 0
    assert scene.held(OTHER) == {key: [value, value] for key, value in MANY}
    assert scene.machines[ME].due() == []


def test_in_epoch_mode_no_checkpoints_are_made(scene: Scene) -> None:
    for service in scene.services.values():
        service.start()
    scene.commit(0, MANY)
    scene.rest(10.0)

    assert "delta" not in {action for _, action in scene.calls}


def test_a_backup_that_missed_a_delta_gets_a_snapshot(world: World) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    scene.machines[ME].delivered(OTHER, ALL, 0)  # it was not: the backup has only the log of it
    scene.machines[OTHER].store.pending_epochs.clear()
    scene.commit(1, MANY)

    scene.call(ME, "checkpoint")
    scene.rest(2.0)

    assert scene.held(OTHER) == {key: [value, value] for key, value in MANY}


def test_a_backup_whose_logs_are_full_asks_for_checkpoints_early(world: World) -> None:
    scene = Scene(world, durability="interval", checkpoint_every=1e6, log_limit=100)
    scene.commit(0, MANY)
    assert (ME, "checkpoint") in scene.calls
    assert scene.machines[OTHER].log_bytes > 100  # nothing is dropped

    scene.commit(1, MANY)  # asks again, now that there is a commit
    scene.rest(2.0)

    assert scene.machines[OTHER].receipts(1, 0, NodeReport()).reach == ((0, 1),)
    assert scene.held(OTHER) != {}


# -- watching --------------------------------------------------------------------------------


def watching(world: World, placement: Placement) -> Scene:
    scene = Scene(world, placement, watch_every=0.5, watch_timeout=2.0)
    for service in scene.services.values():
        service.start()
    return scene


def test_a_node_that_dies_is_reported_by_the_next_one_clockwise(world: World) -> None:
    scene = watching(world, placed([ME, OTHER, THIRD]))
    scene.rest(5.0)
    assert scene.suspicions() == []
    world.crash(OTHER)

    scene.rest(1.6)

    assert scene.suspicions()[:2] == [(OTHER, THIRD, 1), (OTHER, THIRD, 2)]
    assert {(watched, by) for watched, by, _ in scene.suspicions()} == {(OTHER, THIRD)}


def test_a_copy_from_the_neighbour_is_as_good_as_a_ping(world: World) -> None:
    scene = watching(world, placed([ME, OTHER], other=LOW))
    pings = [0, 0]
    for copies in (0, 1):
        scene.calls.clear()
        for _ in range(20):
            if copies:
                scene.feed(0, MANY, slots=LOW, try_=len(scene.calls))
            scene.rest(0.2)
        pings[copies] = scene.calls.count((ME, "ping"))

    assert pings[0] >= 6 and pings[1] == 0


def test_a_node_that_is_alone_or_not_in_the_ring_watches_nobody(world: World) -> None:
    scene = watching(world, placed([ME], other=ALL))

    scene.rest(5.0)

    assert scene.calls == []


def test_refusals_travel_with_their_type(scene: Scene) -> None:
    with pytest.raises(FeedRefusedError) as caught:
        scene.feed(0, MANY, incarnation=0)

    assert caught.value.stale


# -- seals -----------------------------------------------------------------------------------


class Counting:
    """A lock that counts how often it is taken."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock, self.taken = lock, 0

    def __enter__(self) -> None:
        self.taken += 1
        self._lock.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self._lock.__exit__(*problem)


def test_a_large_seal_lets_others_be_answered_between_its_steps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FunctionReducing, "step", 5)
    scene.feed(0, MANY)
    service = scene.services[ME]
    counting = service._metadata = Counting(service._metadata)

    scene.call(ME, "seal", scene.commit_of(0))

    assert counting.taken > len(MANY) // 5
    assert loads(scene.call(ME, "get", (JOB, "7", -1))) == {"seen": [7]}


def test_a_seal_that_is_known_already_does_not_wait_for_a_reduction(scene: Scene) -> None:
    scene.commit(0, MANY)
    service = scene.services[ME]

    def reducing() -> float:
        with service._state:
            scene.task.sleep(10.0)
        return scene.world.now

    def read() -> float:
        scene.task.sleep(1.0)
        scene.task.call(ME, "seal", scene.committed)
        assert loads(scene.task.call(ME, "get", (JOB, "7", -1))) == {"seen": [7]}
        return scene.world.now

    def both() -> None:
        done, answered = scene.task.gather([reducing, read])
        assert isinstance(done, float) and isinstance(answered, float)
        assert answered < done - 8.0

    scene.run(both)


def test_a_read_does_not_wait_for_ever_for_a_merge_that_stands_still(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.feed(1, MANY)
    machine = scene.machines[ME]
    machine.commit(scene.commit_of(1))
    machine.store.is_merging = True

    with pytest.raises(SlotsNotHeldError, match="has not brought all of its slots to epoch 1"):
        scene.call(ME, "get", (JOB, "7", -1))


def test_what_was_merged_is_freed_table_by_table(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who still held all of them would free them at once, with all threads waiting."""
    counts: list[int] = []

    def let_go(tables: list[Any]) -> None:
        while tables:
            table = tables.pop()
            counts.append(sys.getrefcount(table) - 1)  # less the argument

    monkeypatch.setattr(slot_store, "let_go", let_go)
    scene.feed(0, MANY)

    scene.call(ME, "seal", scene.commit_of(0))

    assert counts
    assert set(counts) == {1}
