from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.node.slot_store import UnknownJobError
from millstream.ring.hashing import slot_of_key
from millstream.ring.keys import KeyTypeError
from millstream.ring.ring import Ring
from millstream.state.keyed import KeyedState
from millstream.wire.replication import SlotsNotHeldError
from tests.node.machines import (
    ALL,
    HIGH,
    JOB,
    LOW,
    MANY,
    ME,
    OTHER,
    Node,
    commit_of,
    items_of,
    looked_up,
    mask_of,
    placed,
)
from tests.work.running import SLOTS


@pytest.fixture
def node() -> Node:
    return Node()


# -- committed epochs ------------------------------------------------------------------------


def test_a_large_epoch_is_merged_in_steps_and_each_slot_in_one_of_them(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyedState, "step", 5)
    node.commit(0, MANY)
    before = node.state()
    node.run(1, MANY)
    node.machine.commit(commit_of([node.machine], 1))
    after = {key: [*seen, *seen] for key, seen in before.items()}

    steps = 0
    for step in node.store.merge_steps():
        step()
        steps += 1
        for slot in ALL:
            held = before if node.store.holdings.through[slot] == 0 else after
            found = dict(items_of(node.store, range(slot, slot + 1)))
            assert found == {key: {"seen": held[key]} for key in found}

    assert steps >= len(MANY) // 5
    assert node.state() == after


def test_slots_with_waiting_readers_are_merged_first(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyedState, "step", 1)
    node.run(0, MANY)
    node.machine.commit(commit_of([node.machine], 0))
    steps = node.store.merge_steps()
    next(steps)()
    node.store.prioritise(range(SLOTS - 1, SLOTS))

    next(steps)()

    assert node.store.holdings.through[SLOTS - 1] == 0
    assert (node.store.holdings.through < 0).any()


def test_slots_that_are_read_here_are_merged_before_copies_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = placed([ME, OTHER], me=HIGH, other=LOW)
    node, other = Node(placement=both), Node(placement=both, node=OTHER)
    other.run(0, MANY, slots=HIGH)
    other.copy_to(node)
    node.run(0, MANY, slots=LOW)
    decoded: list[bool] = []
    decode = KeyedState.decode

    def noted(state: KeyedState, data: Any) -> Any:
        decoded.append(bool((node.store.holdings.through[LOW.start : LOW.stop] == 0).all()))
        return decode(state, data)

    monkeypatch.setattr(KeyedState, "decode", noted)
    node.machine.seal(commit_of([node.machine, other.machine], 0))

    assert decoded == [True]
    assert node.held() == {key: [value] for key, value in MANY}


# -- look-ups --------------------------------------------------------------------------------


def test_a_look_up_finds_committed_keys_in_canonical_form(node: Node) -> None:
    assert looked_up(node.store, "a") is None
    node.run(0, [(0.0, 1), (float("nan"), 2), (None, 3)])
    assert looked_up(node.store, 0.0) is None
    node.seal(0)

    assert looked_up(node.store, -0.0) == {"seen": [1]}
    assert looked_up(node.store, float("nan")) == {"seen": [2]}
    assert looked_up(node.store, None) == {"seen": [3]}
    for other in (0, "a"):  # an integer is no float, also if they are equal
        with pytest.raises(KeyTypeError):
            looked_up(node.store, other)


def test_keys_of_an_unknown_type_are_read_once_the_type_is_known(node: Node) -> None:
    node.commit(0, [(None, 1)])
    node.commit(1, [("a", 1)])
    node.commit(2, [(None, 2)])

    assert looked_up(node.store, None) == {"seen": [1, 2]}
    assert looked_up(node.store, "a") == {"seen": [1]}


def test_tuple_keys_of_an_unknown_type_are_read_once_the_type_is_known(node: Node) -> None:
    node.commit(0, [((1, None), 1)])
    node.commit(1, [((1, "a"), 2)])
    node.commit(2, [((1, None), 3)])

    assert looked_up(node.store, (1, None)) == {"seen": [1, 3]}
    assert looked_up(node.store, (1, "a")) == {"seen": [2]}


def test_a_node_without_keys_of_a_job_finds_none(node: Node) -> None:
    node.commit(0, [])
    assert looked_up(node.store, "a") is None

    node.commit(1, [(None, 1)])
    assert looked_up(node.store, "a") is None
    assert looked_up(node.store, None) == {"seen": [1]}


def test_changing_a_value_that_was_read_does_not_change_the_state(node: Node) -> None:
    node.commit(0, [("a", 1)])

    looked_up(node.store, "a")["seen"].append(9)

    assert node.state() == {"a": [1]}


def test_keys_are_counted_by_job(node: Node) -> None:
    node.commit(0, [("a", 1), ("b", 1)])

    assert {job: of_job.sum() for job, of_job in node.store.key_counts().items()} == {JOB: 2}


def test_a_job_that_is_not_run_here_cannot_be_looked_up(node: Node) -> None:
    with pytest.raises(UnknownJobError):
        node.store.get_many(99, ["a"], [0])


def test_only_owned_slots_are_read_and_counted_as_state() -> None:
    node = Node()
    node.commit(0, MANY)
    node.assign(placed([ME, OTHER], 1, me=HIGH))
    mine = dict(items_of(node.store, LOW))

    assert 0 < len(mine) < len(MANY) and len(node.held()) == len(MANY)
    assert node.store.key_counts()[JOB].sum() == len(mine)
    assert len(node.store.key_counts()[JOB]) == len(LOW)
    for key, value in MANY:
        slot = slot_of_key(key, pa.string(), SLOTS)
        assert slot is not None
        if key in mine:
            assert node.store.get_many(JOB, [key], [slot]) == [{"seen": [value]}]
        else:
            with pytest.raises(SlotsNotHeldError):
                node.store.get_many(JOB, [key], [slot])


def test_the_keys_of_copies_count_for_how_much_is_to_be_sent() -> None:
    node = Node(jobs=(JOB, JOB + 1))
    node.run(0, MANY)
    node.run(0, [("a", 1)], job=JOB + 1)
    node.seal(0)
    node.assign(placed([OTHER], 1, me=ALL))

    assert node.store.most_keys(ALL) == len(MANY)
    assert node.store.most_keys(LOW) + node.store.most_keys(HIGH) >= len(MANY)


# -- merging ---------------------------------------------------------------------------------


def test_an_epoch_is_merged_only_into_slots_of_which_every_job_has_a_unit() -> None:
    node = Node(jobs=(JOB, JOB + 1))
    node.run(0, MANY)
    node.run(0, MANY, slots=LOW, job=JOB + 1)

    node.seal(0)

    assert node.store.holdings.through.tolist() == [0] * 8 + [-1] * 8
    assert node.state() == dict(found(node, LOW))
    assert [pending_epoch.epoch for pending_epoch in node.store.pending_epochs.oldest_first()] == [
        0
    ]


def found(node: Node, slots: range) -> list[tuple[str, list[int]]]:
    items = node.store.operators[JOB].state.items(mask_of(slots))
    return [(key, state["seen"]) for key, state in items]


def test_merged_epochs_are_not_pending(node: Node) -> None:
    node.commit(0, MANY)

    assert list(node.store.pending_epochs.oldest_first()) == []


def test_released_slots_are_dropped() -> None:
    node = Node()
    node.commit(0, MANY)

    node.assign(placed([ME, OTHER], 1))

    assert 0 < len(node.held()) < len(MANY)
    assert node.held() == dict(found(node, LOW))
    node.assign(placed([ME, OTHER], 2, me=HIGH))
    assert node.held() == dict(found(node, LOW)) and node.store.reach() == ((0, 0), (8, -2))


# -- snapshots and deltas --------------------------------------------------------------------


def test_a_view_is_cut_where_slots_are_not_equally_far(node: Node) -> None:
    node.commit(0, MANY)
    node.store.holdings.through[3:5] = 7

    views = node.store.snapshots(1, range(1, 10))

    assert [(view.slots, view.through) for view in views] == [
        (range(1, 3), 0),
        (range(3, 5), 7),
        (range(5, 10), 0),
    ]


def test_later_changes_do_not_show_in_a_view() -> None:
    primary, backup = Node(), Node(node=OTHER, placement=placed([ME], other=ALL))
    primary.commit(0, MANY)
    views = primary.store.snapshots(1, ALL)
    primary.commit(1, MANY)

    for view in views:
        backup.store.install(view)

    assert backup.held() == {key: [value] for key, value in MANY}


def test_there_is_no_view_of_slots_without_a_copy() -> None:
    node = Node(placement=placed([ME, OTHER]))

    assert len(node.store.snapshots(1, LOW)) == 1
    with pytest.raises(SlotsNotHeldError, match="has no copy of slots 7"):
        node.store.snapshots(1, range(7, 9))


def test_a_snapshot_replaces_older_state_only() -> None:
    primary = Node(placement=placed([ME], other=ALL))
    backup = Node(node=OTHER, placement=placed([ME], other=ALL))
    primary.commit(0, [("a", 0)])
    [old] = primary.store.snapshots(1, ALL)
    primary.commit(1, [("b", 1)])
    [new] = primary.store.snapshots(1, ALL)

    for snapshot in (old, new, new, old):
        backup.store.install(snapshot)

    assert backup.held() == {"a": [0], "b": [1]}
    assert (backup.store.holdings.through == 1).all()


def test_a_snapshot_removes_keys_that_it_does_not_have() -> None:
    primary = Node(placement=placed([ME], other=ALL))
    backup = Node(node=OTHER, placement=placed([ME], other=ALL))
    backup.store.install(primary.store.snapshots(1, ALL)[0])
    primary.run(0, [("a", 0)])
    primary.copy_to(backup)
    backup.seal(0)
    assert backup.held() == {"a": [0]}
    fresh = Node()
    fresh.commit(0, [])
    fresh.commit(1, [("b", 1)])

    backup.store.install(fresh.store.snapshots(1, ALL)[0])

    assert backup.held() == {"b": [1]}


def test_a_snapshot_touches_only_slots_that_are_backed_up_here() -> None:
    primary = Node()
    primary.commit(0, MANY)
    ring = Ring.even([ME, OTHER], SLOTS)
    partly = Node(node=OTHER, placement=placed(ring, other=range(2, 4)))

    partly.store.install(primary.store.snapshots(1, ALL)[0])

    assert partly.held() == dict(found(primary, range(2, 4)))
    assert partly.store.reach() == ((0, -2), (2, 0), (4, -2), (8, -1))


def test_a_delta_is_taken_where_it_leaves_no_gap() -> None:
    node = Node(placement=placed([OTHER], me=ALL))
    node.store.holdings.through[:4] = [-2, 0, 3, 4]

    takes = node.store.applicable(range(0, 5), since=0, through=4)

    assert takes.tolist() == [False, True, True, False] + [False] * 12
    assert node.store.apply_delta((), range(1, 4), since=0, through=4) == 4
    assert node.store.holdings.through[:5].tolist() == [-2, 4, 4, 4, -1]
    assert node.store.apply_delta((), range(0, 4), since=0, through=4) == -2


def test_a_delta_is_not_for_owned_slots() -> None:
    node = Node(placement=placed([ME, OTHER], me=HIGH))

    assert not node.store.applicable(LOW, since=-1, through=3).any()
    assert node.store.apply_delta((), LOW, since=-1, through=3) == -2
    assert (node.store.holdings.through == -1).all()


def test_reach_is_reported_in_runs() -> None:
    node = Node()
    node.store.holdings.through[:] = np.repeat([2, 2, 5, -1], 4)

    assert node.store.reach() == ((0, 2), (8, 5), (12, -1))
