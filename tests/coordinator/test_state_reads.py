"""Reads of state while slots move, nodes join and leave, and epochs are committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from millstream.coordinator import state_lookup, state_scan
from millstream.coordinator.state_lookup import Lookup
from millstream.coordinator.state_reader import StateReader
from millstream.errors import ConfigError
from millstream.ring.keys import KeyTypeError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.sim import World
from millstream.state.pickling import dumps
from millstream.wire.commit import NOTHING_COMMITTED
from millstream.wire.scan_filters import KeyRange, Largest
from millstream.wire.state_reads import FoundStates
from tests.coordinator.clusters import N2, SLOTS, Run


@pytest.fixture
def world() -> Iterator[World]:
    with World(31) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world, nodes=2)


def test_a_scan_continues_while_its_slots_move_to_a_node_that_joined_since(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_scan, "_SLOTS_AT_ONCE", 1)

    def main() -> None:
        for _ in range(3):
            run.epoch()
        before, scan = run.expected(), StateReader(run.coordinator).items(1)
        found = dict([next(scan)])
        run.coordinator.scaling.scale_to(3)
        run.cluster.join()
        for _ in range(4):
            run.epoch()
            run.rest(1.0)
        assert len(run.owned_by(N2)) == SLOTS // 3
        found.update(scan)

        assert (scan.epoch, found) == (2, before[1])

    run.main(main)


def test_a_scan_continues_after_unchanged_slots_were_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_scan, "_SLOTS_AT_ONCE", 1)
    run = Run(world, nodes=2, replicas=0)

    def main() -> None:
        for _ in range(3):
            run.epoch()
        before, scan = run.expected(), StateReader(run.coordinator).items(1)
        found = dict([next(scan)])
        run.coordinator.scaling.scale_to(3)
        run.cluster.join()
        run.rest(60.0)  # without an epoch, and so without a change of what moves
        assert len(run.owned_by(N2)) == SLOTS // 3
        found.update(scan)

        assert (scan.epoch, found) == (2, before[1])

    run.main(main)


def test_keys_are_read_together_as_of_one_epoch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lookup, "_KEYS_AT_ONCE", 2)

    def main() -> None:
        run.epoch()
        keys = [*run.expected()[1], "never seen"]
        reads: list[tuple[int, list[Any]]] = []

        def read() -> None:
            for _ in range(60):
                found = StateReader(run.coordinator).get_many(1, keys)
                reads.append((found.epoch, found.values))
                run.rest(0.01)

        def epochs() -> None:
            while len(reads) < 60:
                run.epoch()

        for problem in run.cluster.driver.gather([read, epochs]):
            assert problem is None, problem
        for epoch, values in reads:
            expected = run.reference.after[epoch][1]
            assert values == [expected.get(key) for key in keys]
        assert len({epoch for epoch, _ in reads}) > 2

    run.main(main)


def test_a_filter_is_applied_where_the_keys_are(run: Run) -> None:
    def main() -> None:
        for _ in range(3):
            run.epoch()
        reader, expected = StateReader(run.coordinator), run.expected()[1]
        some = sorted(expected)[1]

        assert dict(reader.items(1, KeyRange(some[:1]))) == {
            key: value for key, value in expected.items() if key.startswith(some[:1])
        }
        assert set(dict(reader.items(1, KeyRange(start=some)))) == set(sorted(expected)[1:])
        assert set(dict(reader.items(1, KeyRange(stop=some)))) == set(sorted(expected)[:1])

    run.main(main)


def test_before_the_first_epoch_no_key_has_a_state(run: Run) -> None:
    def main() -> None:
        found = StateReader(run.coordinator).get_many(1, ["a", "b"])
        assert (found.epoch, found.values) == (-1, [None, None])

    run.main(main)


# -- look-ups --------------------------------------------------------------------------------

A, B = NodeId("a"), NodeId("b")
PLACEMENT = Placement.alone(Ring.even([A, B], 16))


def answered(lookup: Lookup, epochs: dict[NodeId, int]) -> list[NodeId]:
    """Answer what a look-up asks with the epoch of each node; return who was asked."""
    asked = lookup.requests(PLACEMENT, NOTHING_COMMITTED)
    for node, request, which in asked:
        values = [(key, epochs[node]) for key in request.keys]
        lookup.found(which, FoundStates(epochs[node], dumps(values)))
    return [node for node, _, _ in asked]


def test_answers_of_older_epochs_are_asked_for_again() -> None:
    keys = [str(number) for number in range(20)]
    lookup = Lookup(0, keys, pa.string(), 16)

    assert answered(lookup, {A: 3, B: 4}) == [A, B] and not lookup.is_done
    assert answered(lookup, {A: 5}) == [A] and not lookup.is_done
    assert answered(lookup, {B: 5}) == [B] and lookup.is_done

    assert (lookup.epoch, lookup.values) == (5, [(key, 5) for key in keys])


def test_if_only_none_was_seen_other_keys_have_no_state() -> None:
    assert Lookup(0, ["a"], pa.null(), 16).is_empty
    lookup = Lookup(0, ["a", None], pa.null(), 16)
    answered(lookup, {A: 1, B: 1})

    assert lookup.is_done and lookup.values == [None, (None, 1)]


def test_a_key_of_another_type_is_an_error() -> None:
    with pytest.raises(KeyTypeError):
        Lookup(0, ["a"], pa.int64(), 16)


# -- filters ---------------------------------------------------------------------------------


def test_the_largest_values_are_found_by_an_entry_or_as_they_are() -> None:
    items = [("a", {"n": 1, "m": 9}), ("b", {"n": 3, "m": 1}), ("c", {"m": 5}), ("d", {"n": "x"})]

    assert [key for key, _ in Largest(2, "n").select(items)] == ["b", "a"]
    assert Largest(1).select([("a", 1), ("b", 2.5), ("c", None), ("d", float("nan"))]) == [
        ("b", 2.5)
    ]
    assert Largest(1).select([("a", {"n": 1}), ("b", {"n": 2})]) == [("b", {"n": 2})]
    with pytest.raises(ConfigError, match="by must name an entry of the values: n, m"):
        Largest(1).select(items)
    with pytest.raises(ConfigError, match="leave out by"):
        Largest(1, "n").select([("a", 1)])


def test_only_text_and_bytes_have_a_prefix_and_none_is_in_no_range() -> None:
    with pytest.raises(ConfigError, match="prefix"):
        KeyRange(prefix=1)  # type: ignore[arg-type]

    assert KeyRange(start=1, stop=3).select([(k, 0) for k in (0, 1, 2, 3, None)]) == [
        (1, 0),
        (2, 0),
    ]
