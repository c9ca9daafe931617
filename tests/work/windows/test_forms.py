"""What functions of users get, and may do with it."""

from __future__ import annotations

import random
from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import millstream as ms
from millstream.flow.windows import CountWindow, SessionWindow, TimeWindow, Window, WithinWindow
from millstream.state.immutable import private_copy
from millstream.state.records import row_type
from tests.work.windows.join_rig import JoinRig, join_of
from tests.work.windows.rig import Rig, job_of, packed

SECOND = 1_000_000
Pair = namedtuple("Pair", "one other")


class Noted(Pair):
    """A tuple with room for attributes."""


class Steady(random.Random):
    """A rig of which every attempt succeeds and no node is replaced."""

    def random(self) -> float:
        return 0.55


class Failing(random.Random):
    """A rig of which every first attempt fails."""

    def random(self) -> float:
        return 0.25


def bumped(key: str, values: list[dict[str, int]], window: Any) -> tuple[str, str]:
    """Changes the values that it is given."""
    for value in values:
        value["n"] += 1
    return key, ",".join(str(value["n"]) for value in values)


WINDOWS = {
    "sliding": (TimeWindow(20 * SECOND, 10 * SECOND), ["1", "1,1", "1"]),
    "session": (SessionWindow(30 * SECOND), ["1", "1,1", "1,1"]),
    "count": (CountWindow(2, 1), ["1", "1,1"]),
    "global": (ms.global_window(ms.every(1)), ["1", "1,1"]),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("rng", [Steady(), Failing()], ids=["steady", "failing"])
@pytest.mark.parametrize("window, wanted", WINDOWS.values(), ids=WINDOWS)
def test_a_function_that_changes_values_changes_no_state(
    window: Window, wanted: list[str], rng: random.Random, ordered: bool
) -> None:
    rig = Rig(job_of(bumped, window, early=1, ordered=ordered), rng, nodes=1, pack=packed)
    is_session = isinstance(window, SessionWindow)

    rig.run([("a", 9 * SECOND, {"n": 0})], 0, early=is_session)
    rig.run([("a", 11 * SECOND, {"n": 0})], 0, early=is_session)
    rig.run([], 100 * SECOND)

    assert rig.results == [("a", one) for one in wanted]


class RecordRig(JoinRig):
    """Keeps what ``on_match`` gives as it is."""

    def _take(self, outputs: Any) -> None:
        for batch in outputs:
            self.results += [tuple(row.values()) for row in batch.to_pylist()]


def test_a_function_of_a_join_that_changes_values_changes_no_state() -> None:
    def on_match(key: str, left: dict[str, int], right: dict[str, int] | None) -> Any:
        for value in (left, right):
            if value is not None:
                value["n"] += 1
        return key, left["n"], None if right is None else right["n"]

    job = join_of(WithinWindow(10), how="left", on_match=on_match)
    rig = RecordRig(job, Failing(), nodes=1)

    rig.run([("a", 0, ("left", {"n": 0})), ("a", 1, ("right", {"n": 5}))], 0)
    rig.run([("a", 2, ("left", {"n": 0})), ("a", 3, ("right", {"n": 5}))], 0)
    rig.run([("b", 4, ("left", {"n": 0}))], 0)
    rig.run([], 1000)

    assert rig.results == [("a", 1, 6)] * 4 + [("b", 1, None)]


@pytest.mark.parametrize(
    "value",
    [
        7,
        "text" * 9,
        None,
        Decimal("1.5"),
        datetime(2026, 3, 1, tzinfo=UTC),
        (1, ("a", b"b")),
        Pair(1, 2.0),
        row_type(("id", "at"))("a", datetime(2026, 3, 1, tzinfo=UTC)),
    ],
    ids=repr,
)
def test_immutable_values_are_passed_without_copying(value: Any) -> None:
    assert private_copy(value) is value


@pytest.mark.parametrize(
    "value", [[1], {"n": 1}, (1, [2]), Pair([1], 2), Noted(1, 2), row_type(("id",))([1])], ids=repr
)
def test_mutable_values_are_copied(value: Any) -> None:
    found = private_copy(value)

    assert found is not value and found == value and type(found) is type(value)
