"""What the tests of windows have in common: streams of rows, and reducers of each form."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from tests.work.windows.rig import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    return round((time - EPOCH).total_seconds() * 1e6)


class Listed:
    """A combinable with a list for an accumulator that its merge changes; order shows in it."""

    def __init__(self) -> None:
        self.merges = 0

    def zero(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        self.merges += 1
        left.extend(right)
        right.clear()
        return left

    def result(self, accumulator: list[int]) -> str:
        text = ",".join(map(str, accumulator))
        accumulator.clear()
        return text


def text_of(rows: list[Row]) -> str:
    """What ``Listed`` gives for the values of these rows."""
    return ",".join(str(value) for _, _, value in rows)


def sum_of(rows: list[Row]) -> int:
    return sum(value for _, _, value in rows)


def stream(rng: random.Random, epochs: int, keys: str = "abcdefg") -> list[tuple[list[Row], int]]:
    """Rows that come roughly in order, some a good deal late, and a watermark that follows."""
    found = []
    now = rng.randint(-30, 30)
    for _ in range(epochs):
        rows = []
        for _ in range(rng.choice([0, 1, 5, 12, 30])):
            time = now + rng.randint(-12, 6)
            rows.append((rng.choice(keys), time, rng.randint(0, 50)))
        found.append((rows, now - rng.choice([0, 0, 4, 12])))
        now += rng.choice([0, 1, 3, 3, 9, 40])
    return found
