"""A join equals the plain answer, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from typing import Any, get_args

import numpy as np
import pytest

from millstream.flow.reducers import JoinKind
from millstream.flow.windows import TimeWindow, WithinWindow
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.windows import join_matching
from tests.work.windows.join_rig import (
    UNIT,
    JoinRig,
    Window,
    answers_of,
    expected,
    held,
    in_time,
    join_of,
    stream,
)
from tests.work.windows.rig import SLOTS

WINDOWS = [
    WithinWindow(0),
    WithinWindow(UNIT),
    WithinWindow(7 * UNIT),
    WithinWindow(30 * UNIT + 1),
    TimeWindow(10 * UNIT, 10 * UNIT),
    TimeWindow(12 * UNIT, 4 * UNIT),
    TimeWindow(10 * UNIT, 3 * UNIT),
    TimeWindow(5 * UNIT, UNIT // 4),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("how", get_args(JoinKind))
@pytest.mark.parametrize("seed", range(5))
def test_every_pair_is_given_once_when_the_later_value_has_come(
    window: Window, how: JoinKind, seed: int
) -> None:
    rng = random.Random(seed)
    epochs = in_time(window, stream(rng, 25))
    rig = JoinRig(join_of(window, how=how), rng)

    assert answers_of(rig, epochs) == expected(window, how, epochs)
    assert not held(rig)


def test_large_results_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_matching, "AT_ONCE", 7)
    window = TimeWindow(12 * UNIT, 4 * UNIT)
    rng = random.Random(5)
    epochs = in_time(window, stream(rng, 25))

    answers = answers_of(JoinRig(join_of(window, how="outer"), rng), epochs)

    assert answers == expected(window, "outer", epochs)


@pytest.mark.parametrize(("how", "reach"), [("inner", 10), ("left", 20), ("outer", 20)])
def test_values_that_cannot_match_any_more_are_dropped(how: JoinKind, reach: int) -> None:
    rig = JoinRig(join_of(WithinWindow(10 * UNIT), how=how), random.Random(1))
    for now in range(200):
        rows = [("a", now * UNIT, (side, now)) for side in ("left", "right")]
        rig.run(rows, now * UNIT)

    times = {value.time // UNIT for value in held(rig)}
    assert set(range(199 - reach, 200)) <= times
    assert min(times) >= 199 - reach - 3  # the rest of a pane


def test_each_value_can_be_seen_while_it_waits() -> None:
    rig = JoinRig(join_of(WithinWindow(10 * UNIT)), random.Random(1), nodes=1)
    rig.run([("a", 5, ("left", "x")), ("b", 7, ("right", "y"))], 0)
    rig.run([("a", 3, ("right", ["z"]))], 0)

    (owner,) = rig.owners
    found = dict(owner.state.items(np.ones(SLOTS, bool)))

    assert found == {
        "a": [("right", 3, ["z"]), ("left", 5, "x")],
        "b": [("right", 7, "y")],
    }
    slot = next(
        s for s in range(SLOTS) if owner.state.count(np.arange(SLOTS) == s) and _has(owner, s)
    )
    assert owner.state.get(slot, "a") == found["a"]
    assert owner.state.get(slot, "other") is None


def _has(owner: Any, slot: int) -> bool:
    return any(key == "a" for key, _ in owner.state.items(np.arange(SLOTS) == slot))


class MatchRig(JoinRig):
    """Keeps what ``on_match`` gives as it is."""

    def _take(self, outputs: Any) -> None:
        for batch in outputs:
            self.results += [tuple(row.values()) for row in batch.to_pylist()]


def test_a_function_makes_records_of_pairs() -> None:
    def on_match(key: str, left: int, right: int | None) -> Any:
        if right is None:
            return [(key, left), (key, -left)]
        return None if left > right else (key, left + right)

    job = join_of(WithinWindow(10), how="left", on_match=on_match)
    rig = MatchRig(job, random.Random(1))

    rig.run([("a", 0, ("left", 1)), ("a", 5, ("right", 2)), ("a", 100, ("left", 7))], 0)
    rig.run([("a", 6, ("right", 0))], 0)
    rig.run([], 1000)

    assert rig.results == [("a", 3), ("a", 7), ("a", -7)]


def test_an_error_in_the_function_names_it_and_the_key() -> None:
    def on_match(key: str, left: int, right: int) -> float:
        return left / right

    rig = JoinRig(join_of(WithinWindow(10), on_match=on_match), random.Random(1))

    with pytest.raises(UserFunctionError) as caught:
        rig.run([("a", 0, ("left", 1)), ("a", 5, ("right", 0))], 0)

    assert caught.value.role == "on_match of join 'job'"
    assert caught.value.key == "'a' (str)"
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_keys_of_two_types_are_refused() -> None:
    rig = JoinRig(join_of(WithinWindow(10)), random.Random(1), nodes=1)

    with pytest.raises(RecordError, match="key"):
        rig.run([(1, 0, ("left", 1)), ("a", 5, ("right", 0))], 0)
