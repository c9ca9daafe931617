"""Global windows give what their triggers say, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.flow.windows import EveryCount, EveryTime, GlobalWindow, OnWatermark, Trigger
from millstream.times import BEGINNING
from millstream.work.failures import RecordError
from millstream.work.job_clock import JobClock
from millstream.work.unit import UnitContext
from millstream.work.windows.choice import window_operator
from millstream.work.windows.forms import EndlessWindow
from tests.work.windows.rig import SLOTS, Rig, Row, block_of, job_of, packed
from tests.work.windows.streams import Listed, stream, sum_of, text_of

TRIGGERS = [EveryCount(1), EveryCount(4), EveryTime(10), OnWatermark()]


def run(
    reduce: object, trigger: Trigger, seed: int, plain: Callable[[list[Row]], Any]
) -> tuple[Rig, list[tuple[Any, Any]], list[int]]:
    """A rig after many epochs, and what its job should have given, in which order of times."""
    rng = random.Random(f"{seed} {trigger}")
    pack = packed if seed % 2 else block_of
    rig = Rig(job_of(reduce, GlobalWindow(trigger)), rng, pack=pack)
    seen: dict[Any, list[Row]] = defaultdict(list)
    dirty: dict[Any, list[Row]] = defaultdict(list)
    wanted: list[tuple[Any, Any]] = []
    times = []
    closed = BEGINNING
    for rows, watermark in stream(rng, 25):
        early = rng.random() < 0.4
        for row in rig.run(rows, watermark, early=early):
            seen[row[0]].append(row)
            dirty[row[0]].append(row)
        now = max(closed, watermark)
        for key, fresh in list(dirty.items()):
            newest = max(time for _, time, _ in fresh)
            if isinstance(trigger, EveryCount):
                fires = len(fresh) >= trigger.count
            else:
                fires = early if isinstance(trigger, EveryTime) else newest < now
            if fires:
                wanted.append((key, plain(seen[key])))
                times.append(max(newest, closed))
                del dirty[key]
        closed = now
    assert len(wanted) > 10
    return rig, wanted, times


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_built_in_aggregates(trigger: Trigger, seed: int) -> None:
    rig, wanted, times = run(ms.sum(), trigger, seed, sum_of)

    assert Counter(rig.results) == Counter((*one, None, None, "on_time") for one in wanted)
    assert Counter(rig.times) == Counter(times)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_combinables_that_change_what_they_are_given(trigger: Trigger, seed: int) -> None:
    rig, wanted, _ = run(Listed(), trigger, seed, text_of)

    assert Counter((key, text) for key, text, *_ in rig.results) == Counter(wanted)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_functions_see_all_values_as_they_came(trigger: Trigger, seed: int) -> None:
    def joined(key: str, values: list[int], window: EndlessWindow) -> tuple[str, str]:
        assert window == (None, None, "on_time")
        return key, ",".join(map(str, values))

    rig, wanted, _ = run(joined, trigger, seed, text_of)

    assert Counter(rig.results) == Counter(wanted)


def test_the_state_of_a_key_is_readable() -> None:
    rig = Rig(job_of(ms.sum(), GlobalWindow(EveryCount(2))), random.Random(1), nodes=1)
    rig.run([("a", 5, 1), ("b", 25, 4)], 0)
    rig.run([("a", 6, 2)], 100)
    [owner] = rig.owners
    assert dict(owner.state.items(np.ones(8, bool))) == {"a": 3, "b": 4}
    assert [(key, value) for key, value, *_ in rig.results] == [("a", 3)]


def test_values_of_another_type_are_refused_even_if_they_are_of_other_keys() -> None:
    rig = Rig(job_of(ms.min(), GlobalWindow(EveryCount(5))), random.Random(1), nodes=1)
    rig.run([("a", 5, 1)], 0)
    with pytest.raises(RecordError, match="input of job 'job' changed its type"):
        rig.run([("b", 6, "text")], 0)


def test_unread_results_are_not_emitted_but_the_state_is_updated() -> None:
    job = job_of(ms.sum(), GlobalWindow(EveryCount(2)))
    owner = window_operator(job, SLOTS)
    [block] = block_of(job, [("a", 5, 1), ("a", 6, 2)], True)
    reduced = owner.reduce([block], UnitContext(range(SLOTS), 0, read=False, clock=JobClock()))
    owner.state.apply(reduced.fragment)
    assert not reduced.outputs and reduced.keys == 1
    assert dict(owner.state.items(np.ones(SLOTS, bool))) == {"a": 3}
