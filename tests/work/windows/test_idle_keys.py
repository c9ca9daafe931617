"""Count and global windows forget keys that saw no value for their time-to-live."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.flow.windows import CountWindow, EveryCount, GlobalWindow, OnWatermark
from millstream.work.windows.choice import window_operator
from tests.work.windows.rig import SLOTS, Rig, block_of, job_of, packed

TTL = 5  # microseconds; an epoch of the rig is one later than the last
ALL = np.ones(SLOTS, bool)


def joined(key: str, values: list[int]) -> tuple[str, str]:
    return key, ",".join(map(str, values))


def run(reduce: object, window: CountWindow | GlobalWindow, seed: int) -> None:
    """Compare what a job gives with the plain answer; most epochs have no value of most keys."""
    rng = random.Random(seed)
    job = replace(job_of(reduce, window), ttl=timedelta(microseconds=TTL))
    rig = Rig(job, rng, pack=packed if seed % 2 else block_of)
    size = window.size if isinstance(window, CountWindow) else 3
    seen: dict[str, list[int]] = {}
    touched: dict[str, int] = {}
    wanted: Counter[tuple[Any, ...]] = Counter()
    for epoch in range(120):
        keys = [key for key in "abcdefgh" if rng.random() < 0.15]
        given = rig.run([(key, epoch, rng.randrange(100)) for key in keys], epoch)
        for key in [key for key, last in touched.items() if last < epoch - TTL]:
            del seen[key], touched[key]
        for key, _, value in given:
            seen.setdefault(key, []).append(value)
            touched[key] = epoch
            if len(seen[key]) % size == 0:
                start = 0 if isinstance(window, GlobalWindow) else -size
                wanted[key, *seen[key][start:]] += 1
        held = {key for owner in rig.owners for key, _ in owner.state.items(ALL)}
        assert held == set(seen)
    assert len(wanted) > 8
    results = Counter(
        (result[0], *(map(int, result[1].split(",")) if reduce is joined else [result[1]]))
        for result in rig.results
    )
    assert results == (wanted if reduce is joined else _sums(wanted))


def _sums(wanted: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for (key, *values), count in wanted.items():
        found[key, sum(values)] += count
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reduce", [ms.sum(), joined], ids=["aggregate", "function"])
@pytest.mark.parametrize("window", [CountWindow(3, 3), GlobalWindow(EveryCount(3))], ids=str)
def test_an_expired_key_starts_with_empty_state(
    reduce: object, window: CountWindow | GlobalWindow, seed: int
) -> None:
    run(reduce, window, seed)


def test_to_give_a_result_is_not_to_see_a_value() -> None:
    job = replace(job_of(ms.sum(), GlobalWindow(OnWatermark())), ttl=timedelta(microseconds=TTL))
    rig = Rig(job, random.Random(1), nodes=1)
    rig.run([("a", 1, 7)], 0)
    for epoch in range(1, TTL + 2):  # its result comes with the watermark of the last but one
        assert [key for key, _ in rig.owners[0].state.items(ALL)] == ["a"]
        rig.run([], 0 if epoch < TTL else 10)
    assert len(rig.results) == 1

    assert not list(rig.owners[0].state.items(ALL))


@pytest.mark.parametrize("reduce", [ms.sum(), joined], ids=["aggregate", "function"])
@pytest.mark.parametrize("before", [None, timedelta(microseconds=TTL)])
def test_a_time_to_live_may_be_given_or_taken_away_later(
    reduce: object, before: timedelta | None
) -> None:
    old = replace(job_of(reduce, CountWindow(3, 3)), ttl=before)
    after = None if before else timedelta(microseconds=TTL)
    rig = Rig(old, random.Random(1), nodes=1)
    rig.run([("a", 1, 7), ("b", 1, 8)], 0)
    stored = rig.owners[0].state.encode(rig.owners[0].state.snapshot(range(SLOTS)))
    rig.job = replace(old, ttl=after)
    resumed = window_operator(rig.job, SLOTS)
    resumed.state.apply(resumed.state.decode(stored))
    rig.owners = [resumed]

    rig.run([("a", 2, 1)], 0)
    for _ in range(TTL + 1):
        rig.run([], 0)

    held = {key for key, _ in rig.owners[0].state.items(ALL)}
    assert held == ({"a", "b"} if after is None else {"b"})
