from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from millstream.state.records import decode_records
from millstream.work import unit_values
from millstream.work.operators import operator_for
from millstream.work.unit import UnitContext
from millstream.work.unit_values import Repeats, gather, shares
from tests.work.running import ALL, SLOTS, blocks_of_pairs, job_of

TTL = 10
SECOND = 1_000_000


def remember(key: Any, values: list[int], state: Any) -> Iterator[Any]:
    state["values"] = [*state.get("values", ()), *values]
    yield key, list(state["values"])


JOB = job_of(remember, ttl=timedelta(seconds=TTL))


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_values, "_LEAST", 20)
    monkeypatch.setattr(unit_values, "_MOST", 40)
    monkeypatch.setattr(unit_values, "_ROWS_OF_BLOCK", 1)


def blocks() -> list[Any]:
    tasks = [[(f"key-{n}", 10 * task + n) for n in range(task, 150)] for task in range(3)]
    return [block for task in tasks for block in blocks_of_pairs(JOB, task)]


@pytest.mark.usefixtures("small_shares")
def test_a_share_has_few_slots_and_all_values_of_their_keys() -> None:
    found = list(map(gather, shares(JOB, blocks())))

    assert len(found) > 5
    assert max(len(groups) for groups, _ in found) <= 40
    of_shares = [set(slots) for _, slots in found]
    assert sum(map(len, of_shares)) == len(set().union(*of_shares))  # no slot is in two
    groups = {key: values for groups, _ in found for key, values in groups.items()}
    expected = {f"key-{n}": [10 * task + n for task in range(3) if n >= task] for n in range(150)}
    assert groups == expected


def test_a_million_keys_are_never_gathered_in_one_table() -> None:
    block = blocks_of_pairs(job_of(remember), [(number, 0) for number in range(200_000)])

    sizes = [len(groups) for groups, _ in map(gather, shares(JOB, block))]

    assert sum(sizes) == 200_000
    assert max(sizes) < 2 * max(200_000 // SLOTS, unit_values._LEAST)


def outcome() -> tuple[Any, Any]:
    """What three epochs give and leave, the last of which lets keys expire."""
    operator = operator_for(JOB, SLOTS)
    given = []
    for time, fed in ((0, blocks()), (1, blocks()[:1]), (TTL + 1, blocks()[2:])):
        reduced = operator.reduce(fed, UnitContext(range(SLOTS), time * SECOND))
        given.append(sorted(row for b in reduced.outputs for row in decode_records(b)))
        assert reduced.keys == len(
            {key for batch in fed for key in batch.column("key").to_pylist()}
        )
        operator.state.apply(operator.state.decode(operator.state.encode(reduced.fragment)))
    return given, dict(operator.state.items(ALL))


def test_a_reduction_in_many_shares_is_the_same_as_one_in_one(
    request: pytest.FixtureRequest,
) -> None:
    whole = outcome()

    request.getfixturevalue("small_shares")

    assert outcome() == whole


def test_lists_of_equal_values_are_made_when_they_are_taken() -> None:
    tasks = [[("a", 1), ("b", 1), ("a", 1)], [("a", 1)]]
    groups, slots = gather([block for task in tasks for block in blocks_of_pairs(JOB, task)])

    taken = dict(groups.items())
    taken["a"].append(2)  # users may change what they are given

    assert isinstance(groups, Repeats)
    assert (groups["a"], groups["b"]) == ([1, 1, 1], [1])
    assert groups == {"a": [1, 1, 1], "b": [1]}
    assert len(groups) == len(slots) == 2
