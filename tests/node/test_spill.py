"""Nodes whose keys are mostly on disk: copies, takeover, snapshots, deltas and replays of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from millstream.state.spill import Spilling
from millstream.stores.rocksdb.cold import ColdTable
from millstream.wire.commit import Commit
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, OTHER, Node, looked_up, placed

LIMIT = 2000  # about five of the forty keys
MINE = placed([ME], other=ALL)

Make = Callable[..., Node]


@pytest.fixture
def spilling(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes that spill."""
    table = ColdTable(str(tmp_path), LIMIT)
    jobs = count()
    yield lambda **options: Node(
        **options, spilling=Spilling(LIMIT, lambda job: table.of(next(jobs)))
    )
    table.close()


def expected(*epochs: int) -> dict[str, list[Any]]:
    return {key: [value + epoch for epoch in epochs] for key, value in MANY}


def rows(epoch: int) -> list[tuple[str, int]]:
    return [(key, value + epoch) for key, value in MANY]


def is_mostly_cold(node: Node) -> bool:
    return node.store.cold_keys > len(MANY) // 2


def test_state_is_exact_while_most_of_it_is_cold(spilling: Make) -> None:
    node = spilling()
    for epoch in range(3):
        assert dict(node.run(epoch, rows(epoch))) == expected(*range(epoch + 1))
        node.seal(epoch)
        assert is_mostly_cold(node)

    assert node.state() == expected(0, 1, 2)
    assert node.store.key_counts()[JOB].sum() == len(MANY)
    assert looked_up(node.store, "7") == {"seen": [7, 8, 9]}


def test_a_try_that_is_void_leaves_no_trace(spilling: Make) -> None:
    node = spilling()
    node.commit(0, rows(0))
    node.run(1, [(key, 100) for key, _ in MANY], try_=0)

    node.run(1, rows(1), try_=1)
    node.seal(1, try_=1)

    assert node.state() == expected(0, 1)


def test_a_backup_spills_as_well_and_takes_over(spilling: Make) -> None:
    primary, backup = spilling(placement=MINE), spilling(node=OTHER, placement=MINE)
    for epoch in range(2):
        primary.run(epoch, rows(epoch))
        primary.copy_to(backup)
        for node in (primary, backup):
            node.seal(epoch)
    assert is_mostly_cold(backup)

    backup.assign(placed([OTHER], 1))
    backup.commit(2, rows(2))

    assert backup.state() == expected(0, 1, 2)


def test_a_log_is_replayed_over_cold_keys(spilling: Make) -> None:
    backup = spilling(node=OTHER, placement=MINE, durability="interval")
    for epoch in range(3):
        backup.log(epoch, rows(epoch))
        backup.seal(epoch)

    backup.assign(placed([OTHER], 1), committed=Commit(2, 0))

    assert backup.replay() == 3
    assert is_mostly_cold(backup)
    assert backup.state() == expected(0, 1, 2)


def test_deltas_advance_a_backup_whose_keys_are_spilled(spilling: Make) -> None:
    primary = spilling(placement=MINE, durability="interval")
    backup = spilling(node=OTHER, placement=MINE, durability="interval")
    for epoch in range(3):
        primary.commit(epoch, rows(epoch))
        for due in primary.machine.deltas.due():
            reached = backup.machine.take_delta(primary.machine.deltas.request(due, due.slots))
            primary.machine.store.replication.acknowledge(OTHER, due.slots, reached)
        assert is_mostly_cold(backup)

    assert backup.held() == primary.held() == expected(0, 1, 2)


def test_snapshots_have_cold_keys_too_and_install_over_older_ones(spilling: Make) -> None:
    primary, backup = spilling(placement=MINE), spilling(node=OTHER, placement=MINE)
    primary.commit(0, rows(0))
    for view in primary.machine.snapshots(ALL):
        backup.machine.install(view)
    primary.commit(1, rows(1))

    for part in (LOW, HIGH):
        for view in primary.machine.snapshots(part):
            backup.machine.install(view)

    assert is_mostly_cold(backup)
    assert backup.held() == expected(0, 1)
    assert backup.store.most_keys(ALL) == len(MANY)


def test_released_slots_are_removed_from_the_disk(spilling: Make) -> None:
    node = spilling()
    node.commit(0, rows(0))

    node.assign(placed([OTHER], 1))

    assert node.held() == {}
    assert node.store.cold_keys == 0
