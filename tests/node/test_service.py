"""Node services that call each other in a simulated world, with a stub of the coordinator."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.node import key_batches, slot_store
from millstream.node.held_units import Work
from millstream.node.load_meter import LoadMeter
from millstream.node.machine import NodeMachine
from millstream.node.peers import Outgoing
from millstream.node.typed_errors import BackgroundTaskError
from millstream.ring.hashing import slot_of_key
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.state.keyed import KeyedState
from millstream.state.pickling import loads
from millstream.state.records import decode_records
from millstream.wire import timeouts
from millstream.wire.commit import NOTHING_COMMITTED, Commit, Seal
from millstream.wire.feed import BrokenFeedError, FeedRefusedError
from millstream.wire.load_report import FIGURE, packed_runs
from millstream.wire.membership import (
    Assign,
    FencedError,
    FetchAssignment,
    Heartbeat,
    Ping,
    ReportUnreachable,
    Stop,
)
from millstream.wire.net import Delivery
from millstream.wire.persistence import NotReadyError
from millstream.wire.receipts import CollectReceipts, NodeReport
from millstream.wire.replication import (
    CopySlots,
    InstallSnapshot,
    ReplicateDelta,
    ReplicateNow,
    ReplicateUnit,
    ResendUnits,
    SlotsNotHeldError,
    Snapshot,
)
from millstream.wire.request import Request, UnknownRequestError
from millstream.wire.state_reads import CloseScan, GetStates, OpenScan, ReadScan, ScanBrokenError
from millstream.work.feeder import end_of
from tests.node.machines import ALL, HIGH, HISTORY, JOB, LOW, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import MEMORY, Scene, rows_of
from tests.work.running import SLOTS


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


# -- feeds and copies ------------------------------------------------------------------------


def test_a_feed_is_answered_after_its_copies_are_on_the_backups(scene: Scene) -> None:
    assert sorted(scene.feed(0, [("a", 1), ("b", 2)])) == [("a", [1]), ("b", [2])]

    [receipt] = scene.receipts(ME, 0).receipts
    [copy] = scene.receipts(OTHER, 0).copies
    assert (copy.slots, copy.digest) == (ALL, receipt.digest)
    assert scene.receipts(THIRD, 0).copies == ()
    report = scene.receipts(ME, 0).report
    assert report._replace(load=None) == NodeReport({JOB: 0}, MEMORY, 0)


def test_receipts_carry_the_load_of_the_epoch(world: World) -> None:
    scene = Scene(world, placed([ME, OTHER], other=LOW, me=HIGH))
    scene.feed(0, MANY, slots=LOW)
    load = scene.receipts(ME, 0).report.load
    idle = scene.receipts(THIRD, 0).report.load
    assert load is not None and idle is not None

    [of_job] = load.jobs
    tuples = np.frombuffer(of_job.tuples, FIGURE)
    [receipt] = scene.receipts(ME, 0).receipts
    assert load.slots == packed_runs([LOW]) and len(tuples) == len(LOW)
    assert tuples.sum() == receipt.keys > 0  # of each key one value
    assert load.copy_seconds > 0
    assert not idle.slots and not idle.jobs[0].tuples


def test_state_is_estimated_by_the_deltas_that_backups_get(scene: Scene) -> None:
    scene.commit(0, MANY)
    load = scene.receipts(ME, 1).report.load
    assert load is not None

    keys = scene.machines[ME].store.key_counts()[JOB]
    bytes_of_slots = np.frombuffer(load.jobs[0].state_bytes, FIGURE)
    assert bytes_of_slots.tolist() == pytest.approx((keys * bytes_of_slots.sum() / 40).tolist())
    assert 20 < bytes_of_slots.sum() / 40 < 200
    assert bytes_of_slots.sum() / 40 != 64.0


def test_deltas_of_intervals_tell_the_bytes_of_a_key(world: World) -> None:
    scene = Scene(world, durability="interval")
    for epoch in range(3):
        scene.commit(epoch, MANY)
    scene.call(ME, ReplicateNow())
    scene.rest(3.0)
    load = scene.receipts(ME, 3).report.load
    assert load is not None

    found = np.frombuffer(load.jobs[0].state_bytes, FIGURE).sum() / len(MANY)
    assert 20 < found < 200 and found != 64.0


def test_a_feed_that_waits_for_another_is_counted_by_job(world: World) -> None:
    scene = Scene(world, placed([ME]))
    machine = scene.machines[ME]
    reduce = machine.reduce

    def slowly(work: Any) -> Any:
        scene.services[ME]._net.sleep(1.0)
        return reduce(work)

    machine.reduce = slowly  # type: ignore[method-assign]
    machine.meter = LoadMeter({JOB: HISTORY}, SLOTS, lambda: world.now)
    feeds = [
        partial(
            scene.task.feed,
            Delivery(ME, scene.header(0, slots=slots)),
            [],
            rows_of(MANY, slots),
            end_of(rows_of(MANY, slots)),
            lambda: False,
        )
        for slots in (LOW, HIGH)
    ]

    scene.run(lambda: scene.task.gather(feeds))

    load = scene.receipts(ME, 0).report.load
    assert load is not None
    assert 0.5 < load.waits[JOB, JOB] <= load.queue_seconds <= 1.0
    assert load.most_waiting == 1
    assert load.feed_seconds > 2.0 + load.queue_seconds - 0.5


def test_without_backups_nothing_is_serialised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]))

    def encode(*_: object) -> bytes:
        raise AssertionError("encoded without a backup")

    monkeypatch.setattr(type(scene.machines[ME].store.operators[JOB].state), "encode", encode)

    assert scene.feed(0, [("a", 1)]) == [("a", [1])]


def test_concurrent_attempts_get_the_same_outputs_and_count_once(scene: Scene) -> None:
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
    assert ReplicateUnit not in {request for _, request in scene.calls}


def test_a_node_learns_from_a_feed_which_ring_and_commit_are_in_force(scene: Scene) -> None:
    scene.feed(0, [("a", 1)])
    scene.placement, scene.committed = placed([ME], 1, other=ALL, third=ALL), scene.commit_of(0)

    assert scene.feed(1, [("a", 2)]) == [("a", [1, 2])]

    # The backups learn it from the copies.
    assert {machine.version for machine in scene.machines.values()} == {1}
    assert scene.machines[OTHER].committed == Commit(0, 0)
    assert scene.requests.count(FetchAssignment(ME)) == 1


def test_an_unreachable_backup_is_reported_once_a_round_until_it_answers(scene: Scene) -> None:
    scene.world.cut(ME, OTHER)
    for attempt in range(3):
        scene.feed(0, MANY, try_=attempt)
    reports = scene.unreachable()
    rounds = range(1, len(reports) + 1)
    assert reports == [ReportUnreachable(OTHER, ME, at) for at in rounds] and len(rounds) >= 3

    scene.world.mend(ME, OTHER)
    scene.feed(0, MANY, try_=3)
    scene.rest(20.0)
    before = len(scene.unreachable())
    scene.world.crash(OTHER)
    scene.feed(0, MANY, try_=4)
    scene.rest(0.5)

    assert scene.unreachable()[before] == ReportUnreachable(OTHER, ME, 1)


def takes_slowly(scene: Scene, seconds: list[float]) -> None:
    """Let a backup need so long for its next copies; it answers its pings meanwhile."""
    machine = scene.machines[OTHER]
    take = machine.take_copy

    def slowly(copy: ReplicateUnit) -> None:
        if seconds:
            scene.world.wait("for a busy core", seconds.pop(0))
        take(copy)

    machine.take_copy = slowly  # type: ignore[method-assign]


def test_a_slow_backup_is_reported_as_slow_and_its_copy_is_resent(scene: Scene) -> None:
    takes_slowly(scene, [7.0])

    scene.feed(0, MANY)

    assert len(scene.receipts(OTHER, 0).copies) == 1
    assert scene.unreachable() == []
    assert [(report.node, report.reporter) for report in scene.slow()] == [(OTHER, ME)]
    assert scene.calls.count((OTHER, ReplicateUnit)) == 2


def test_the_timeout_of_a_copy_grows_with_its_bytes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "_MIN_RATE", 10)  # bytes per second
    takes_slowly(scene, [7.0])

    scene.feed(0, MANY)

    assert scene.unreachable() == [] and scene.slow() == []
    assert scene.calls.count((OTHER, ReplicateUnit)) == 1


def test_concurrent_calls_that_fail_are_one_round(world: World) -> None:
    scene = Scene(world, placed([ME], other=ALL), watch_timeout=1.0)
    world.cut(ME, OTHER)
    messages = [Outgoing(OTHER, Ping(), 0)] * 20

    scene.run(lambda: scene.services[ME]._peers.send(messages), ME)
    scene.rest(1.2)

    assert [report.rounds for report in scene.unreachable()] == [1]


def test_a_node_stops_when_it_is_fenced(scene: Scene) -> None:
    scene.problem = FencedError("out")
    scene.world.crash(OTHER)

    scene.feed(0, MANY)
    scene.rest(1.0)

    assert scene.stopped == [ME]


def test_a_rejected_copy_is_not_reported(scene: Scene) -> None:
    scene.machines[OTHER].assign(Assign(1, placed([OTHER], 1), {}))

    scene.feed(0, MANY)
    scene.rest(1.0)

    assert scene.unreachable() == []


def test_frozen_units_are_resent_to_one_peer_on_request(world: World) -> None:
    scene = Scene(world, placed([ME], other=ALL, third=ALL))
    for peer in (OTHER, THIRD):
        world.cut(ME, peer)
    scene.feed(0, MANY)
    for peer in (OTHER, THIRD):
        world.mend(ME, peer)

    scene.call(ME, ResendUnits(THIRD, 0, 0))

    assert len(scene.receipts(THIRD, 0).copies) == 1 and scene.receipts(OTHER, 0).copies == ()


# -- requests --------------------------------------------------------------------------------


def test_a_node_answers_a_ping_with_its_name_and_stops_on_request(scene: Scene) -> None:
    assert scene.call(ME, Ping()) == ME
    scene.call(ME, Stop())
    assert scene.stopped == [ME]
    with pytest.raises(UnknownRequestError, match="node me does not serve Heartbeat"):
        scene.call(ME, Heartbeat(ME))


def test_state_is_read_where_it_is_owned(scene: Scene) -> None:
    scene.commit(0, [("a", 1)])

    assert loads(scene.call(ME, reading("a")).values) == [{"seen": [1]}]
    with pytest.raises(SlotsNotHeldError):
        scene.call(OTHER, reading("a"))
    assert scanned(scene, scene.committed) == {"a": {"seen": [1]}}


def reading(key: str) -> GetStates:
    slot = slot_of_key(key, pa.string(), SLOTS)
    assert slot is not None
    return GetStates(JOB, (key,), (slot,), -1, NOTHING_COMMITTED)


def scanned(scene: Scene, commit: Commit | None, node: NodeId = ME) -> dict[Any, Any]:
    """What a node says to a scan; it is begun if a commit is given."""
    if commit is not None:
        scene.call(node, OpenScan("scan", JOB, commit, 0))
    return {key: loads(value) for key, value in scene.call(node, ReadScan("scan", ALL, -1))}


def test_a_fenced_node_leaves_reads_to_others(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.call(ME, OpenScan("scan", JOB, scene.committed, 0))
    scene.problem = FencedError("out")

    requests: list[Request[Any]] = [
        replace(reading("1"), ring=1),
        ReadScan("scan", ALL, 1),
        OpenScan("another", JOB, scene.committed, 1),
    ]
    for request in requests:
        with pytest.raises(SlotsNotHeldError, match="out"):
            scene.call(ME, request)


def test_a_scan_sees_the_epoch_at_which_it_began(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.call(ME, OpenScan("scan", JOB, scene.committed, 0))
    before = {key: {"seen": [value]} for key, value in MANY}

    scene.commit(1, MANY[:9])
    assert scanned(scene, None) == before
    scene.commit(2, [*MANY[5:20], ("new", 1)])
    assert scanned(scene, None) == before

    assert scanned(scene, scene.committed) == before  # the scan was opened before
    scene.call(ME, CloseScan("scan"))
    with pytest.raises(ScanBrokenError):
        scanned(scene, None)
    assert scanned(scene, scene.committed)["new"] == {"seen": [1]}


def test_a_scan_continues_where_slots_were_taken_over(scene: Scene) -> None:
    scene.commit(0, MANY)
    for node in (ME, OTHER):
        scene.call(node, OpenScan("scan", JOB, scene.committed, 0))
    scene.commit(1, MANY)
    scene.placement = placed([OTHER], 1)
    scene.call(OTHER, scene.assignment())

    assert scanned(scene, None, OTHER) == {key: {"seen": [value]} for key, value in MANY}


def test_a_node_that_missed_its_first_assignment_fetches_it_before_a_scan(scene: Scene) -> None:
    scene.incarnation += 1
    scene.placement = placed([ME], 7)

    scene.call(ME, OpenScan("scan", JOB, scene.committed, 7))

    assert scene.requests.count(FetchAssignment(ME)) == 1
    assert scene.call(ME, ReadScan("scan", ALL, 7)) == []


def test_a_node_past_an_epoch_rejects_a_scan_of_it(scene: Scene) -> None:
    scene.commit(0, MANY)
    before = scene.committed
    scene.commit(1, MANY)

    with pytest.raises(NotReadyError):
        scanned(scene, before)


def test_a_scan_that_is_not_read_for_three_minutes_expires(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.call(ME, OpenScan("forgotten", JOB, scene.committed, 0))
    scene.rest(200.0)

    scene.call(ME, OpenScan("scan", JOB, scene.committed, 0))

    with pytest.raises(ScanBrokenError):
        scene.call(ME, ReadScan("forgotten", ALL, -1))


# -- taking over -----------------------------------------------------------------------------


def test_logs_are_replayed_as_soon_as_their_slots_are_assigned(world: World) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)

    scene.call(OTHER, scene.assignment())
    scene.rest(0.5)

    assert not scene.receipts(OTHER, 1).pending
    assert scene.feed(2, [("1", 9)]) == [("1", [1, 1, 9])]


@pytest.mark.parametrize("problem", [MemoryError("no more"), BrokenFeedError("typed")])
def test_the_error_of_a_replay_is_raised_to_callers_that_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)

    def reduce(work: object) -> None:
        raise problem

    monkeypatch.setattr(scene.machines[OTHER], "reduce", reduce)
    scene.call(OTHER, scene.assignment())
    scene.rest(0.5)

    expected = BackgroundTaskError if isinstance(problem, MemoryError) else BrokenFeedError
    requests: list[Request[Any]] = [CollectReceipts(1, 0, -1), ReadScan("scan", ALL, -1)]
    for request in requests:
        with pytest.raises(expected, match=str(problem)):
            scene.call(OTHER, request)


def test_state_is_read_only_after_the_replay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)
    monkeypatch.setattr(scene.machines[OTHER].replays, "next", lambda: None)
    scene.call(OTHER, scene.assignment())

    with pytest.raises(SlotsNotHeldError):
        scanned(scene, scene.committed, OTHER)
    with pytest.raises(SlotsNotHeldError):
        scene.call(OTHER, reading("1"))

    monkeypatch.undo()
    scene.placement = placed([OTHER], 2)
    scene.call(OTHER, scene.assignment())
    scene.rest(0.5)
    assert loads(scene.call(OTHER, reading("1")).values) == [{"seen": [1]}]


def test_a_new_backup_gets_snapshots_of_a_few_keys_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_batches, "_KEYS_AT_ONCE", 10)
    scene.commit(0, MANY)
    scene.placement = placed([ME], 1, other=ALL, third=ALL)
    for node in (ME, THIRD):
        scene.call(node, scene.assignment())
    assert scene.receipts(THIRD, 0).reach == ((0, -2),)

    scene.call(OTHER, CopySlots(1, THIRD, (LOW, HIGH), scene.committed, 0.1))

    assert scene.receipts(THIRD, 0).reach == ((0, 0),)
    assert scene.held(THIRD) == {key: [value] for key, value in MANY}
    assert scene.calls.count((THIRD, InstallSnapshot)) >= 4


@pytest.mark.parametrize("is_fed", [False, True])
def test_a_copy_is_interrupted_by_a_feed_but_not_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, is_fed: bool
) -> None:
    monkeypatch.setattr(key_batches, "_KEYS_AT_ONCE", 1)
    scene = Scene(world, copy_rate=10_000.0)  # a part takes some 30 ms
    scene.commit(0, MANY)
    scene.placement = placed([ME], 1, other=ALL, third=ALL)
    for node in (ME, THIRD):
        scene.call(node, scene.assignment())
    real = scene.services[ME]._operations.replicate
    rows, header = rows_of(MANY), scene.header(1)

    def feed() -> None:
        scene.task.feed(Delivery(ME, header), [], rows, end_of(rows), lambda: False)

    def replicate(snapshot: Snapshot, peer: NodeId) -> None:
        if is_fed and scene.calls.count((THIRD, InstallSnapshot)) == 0:
            scene.task.spawn(feed, "feed")
        real(snapshot, peer)

    monkeypatch.setattr(scene.services[ME]._operations, "replicate", replicate)
    remaining = scene.call(ME, CopySlots(1, THIRD, (ALL,), scene.committed, 0.1))

    copied = scene.calls.count((THIRD, InstallSnapshot))
    assert sum(map(len, remaining)) + copied == len(ALL)
    assert (1 <= copied <= 2) if is_fed else copied > 2


def test_a_request_of_another_incarnation_copies_nothing(scene: Scene) -> None:
    scene.commit(0, MANY)

    scene.call(ME, CopySlots(2, OTHER, (ALL,), scene.committed, 0.1))

    assert (OTHER, InstallSnapshot) not in scene.calls


def test_a_donor_catches_up_before_it_copies(scene: Scene) -> None:
    scene.feed(0, MANY)
    scene.placement = placed([ME], 1, other=ALL, third=ALL)

    scene.call(ME, CopySlots(1, THIRD, (ALL,), Commit(0, 0), 0.1))
    assert scene.machines[ME].committed == Commit(0, 0)


# -- interval replication --------------------------------------------------------------------


def test_deltas_bring_backups_up_to_date_and_evict_their_logs(world: World) -> None:
    scene = Scene(world, durability="interval", replicate_every=2.0)
    for service in scene.services.values():
        service.start()
    scene.commit(0, MANY)
    scene.commit(1, MANY)
    assert scene.machines[OTHER].log_bytes > 0

    scene.rest(5.0)

    assert scene.machines[OTHER].log_bytes == 0
    assert scene.held(OTHER) == {key: [value, value] for key, value in MANY}
    assert scene.machines[ME].deltas.due() == []


def test_in_epoch_mode_no_deltas_are_replicated(scene: Scene) -> None:
    for service in scene.services.values():
        service.start()
    scene.commit(0, MANY)
    scene.rest(10.0)

    assert ReplicateDelta not in {request for _, request in scene.calls}


def test_a_backup_that_missed_a_delta_gets_a_snapshot(world: World) -> None:
    scene = Scene(world, durability="interval")
    scene.commit(0, MANY)
    # In truth the backup has only the log of it.
    scene.machines[ME].store.replication.acknowledge(OTHER, ALL, 0)
    scene.machines[OTHER].store.pending_epochs.clear()
    scene.commit(1, MANY)

    scene.call(ME, ReplicateNow())
    scene.rest(2.0)

    assert scene.held(OTHER) == {key: [value, value] for key, value in MANY}


def test_a_backup_with_large_logs_asks_for_deltas_early(world: World) -> None:
    scene = Scene(world, durability="interval", replicate_every=1e6, log_limit=100)
    scene.commit(0, MANY)
    assert (ME, ReplicateNow) in scene.calls
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
    assert scene.unreachable() == []
    world.crash(OTHER)

    scene.rest(1.6)

    reports = scene.unreachable()
    assert reports[:2] == [ReportUnreachable(OTHER, THIRD, at) for at in (1, 2)]
    assert {(report.node, report.reporter) for report in reports} == {(OTHER, THIRD)}


def test_a_copy_from_the_neighbour_replaces_a_ping(world: World) -> None:
    scene = watching(world, placed([ME, OTHER], other=LOW))
    pings = [0, 0]
    for copies in (0, 1):
        scene.calls.clear()
        for _ in range(20):
            if copies:
                scene.feed(0, MANY, slots=LOW, try_=len(scene.calls))
            scene.rest(0.2)
        pings[copies] = scene.calls.count((ME, Ping))

    assert pings[0] >= 6 and pings[1] == 0


def test_a_node_alone_or_not_in_the_ring_watches_no_node(world: World) -> None:
    scene = watching(world, placed([ME], other=ALL))

    scene.rest(5.0)

    assert scene.calls == []


def test_rejections_keep_their_type(scene: Scene) -> None:
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


def test_requests_are_served_between_the_steps_of_a_large_seal(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyedState, "step", 5)
    scene.feed(0, MANY)
    service = scene.services[ME]
    counting = Counting(service._locks.metadata)
    service._locks = replace(service._locks, metadata=counting)

    scene.call(ME, Seal(scene.commit_of(0)))

    assert counting.taken > len(MANY) // 5
    assert loads(scene.call(ME, reading("7")).values) == [{"seen": [7]}]


def test_a_seal_that_is_known_already_does_not_wait_for_a_reduction(scene: Scene) -> None:
    scene.commit(0, MANY)
    service = scene.services[ME]

    def reducing() -> float:
        with service._locks.state:
            scene.task.sleep(10.0)
        return scene.world.now

    def read() -> float:
        scene.task.sleep(1.0)
        scene.task.call(ME, Seal(scene.committed))
        assert loads(scene.task.call(ME, reading("7")).values) == [{"seen": [7]}]
        return scene.world.now

    def both() -> None:
        done, answered = scene.task.gather([reducing, read])
        assert isinstance(done, float) and isinstance(answered, float)
        assert answered < done - 8.0

    scene.run(both)


def test_a_read_times_out_if_a_merge_makes_no_progress(scene: Scene) -> None:
    scene.commit(0, MANY)
    scene.feed(1, MANY)
    machine = scene.machines[ME]
    machine.commit(scene.commit_of(1))
    machine.store.is_merging = True

    with pytest.raises(SlotsNotHeldError, match="slots of node me are not at epoch 1 yet"):
        scene.call(ME, reading("7"))


def test_merged_tables_are_freed_one_by_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to all of them would free them at once, with all threads blocked."""
    counts: list[int] = []

    def free_one_by_one(tables: list[Any]) -> None:
        while tables:
            table = tables.pop()
            counts.append(sys.getrefcount(table) - 1)  # less the argument

    monkeypatch.setattr(slot_store, "free_one_by_one", free_one_by_one)
    scene.feed(0, MANY)

    scene.call(ME, Seal(scene.commit_of(0)))

    assert counts
    assert set(counts) == {1}


def test_lines_that_are_logged_during_a_feed_name_its_job(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce = NodeMachine.reduce

    def logged(machine: NodeMachine, work: Work) -> Any:
        logging.getLogger("millstream").warning("reducing")
        return reduce(machine, work)

    monkeypatch.setattr(NodeMachine, "reduce", logged)
    scene.feed(0, [("a", 1)])

    assert [vars(record)["job"] for record in caplog.records] == [HISTORY.name]
