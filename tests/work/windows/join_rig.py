"""Random streams for a join, a join on some nodes, and the plain answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import Place
from millstream.flow.reducers import JoinKind, JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import TimeWindow, Windowing, WithinWindow
from millstream.state.records import decode_records
from millstream.times import BEGINNING
from tests.work.windows.rig import SLOTS, Rig, Row, packed

UNIT = 400_000
"""Times are multiples of this, so that they lie in several panes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Window = TimeWindow | WithinWindow
Epochs = list[tuple[list[Row], int]]
"""Rows whose values say their side, and the watermark of each epoch."""


def join_of(window: Window, *, how: JoinKind = "inner", on_match: Any = None) -> JobVertex:
    """A join called "job"."""
    reach = window.size if isinstance(window, TimeWindow) else window.length
    return JobVertex(
        Place("here.py", 1),
        name="job",
        reducer=JoinReducer(reach, how, on_match),
        windowing=Windowing((window,)),
    )


@dataclass
class JoinRig(Rig):
    """A join on nodes that own runs of slots; see ``Rig``."""

    pack: Any = packed

    def _take(self, outputs: Iterable[pa.RecordBatch]) -> None:
        for batch in outputs:
            for key, left, right, time in decode_records(batch):
                self.results.append((key, left, right, micros(time)))


def micros(time: datetime) -> int:
    return round((time - EPOCH).total_seconds() * 1e6)


def stream(rng: random.Random, epochs: int) -> Epochs:
    """Values of both sides roughly in order, some a good deal late, and a watermark behind."""
    found: Epochs = []
    now, number = rng.randint(-30, 30), 0
    for _ in range(epochs):
        rows: list[Row] = []
        for _ in range(rng.choice([0, 1, 6, 14])):
            time, side = now + rng.randint(-12, 6), rng.choice(["left", "right"])
            number += 1  # no two are the same
            rows.append((rng.choice("abcde"), time * UNIT, (side, number)))
        found.append((rows, (now - rng.choice([0, 0, 4, 12])) * UNIT + rng.choice([-1, 0, 0, 1])))
        now += rng.choice([0, 1, 3, 3, 9, 40])
    found.append(([], 10_000 * UNIT))
    return found


def in_time(window: Window, epochs: Epochs) -> Epochs:
    """The stream without what is late, which never reaches a node."""
    found: Epochs = []
    closed = BEGINNING
    for rows, watermark in epochs:
        first = Windowing((window,)).earliest_on_time(closed)
        found.append(([row for row in rows if row[1] >= first], watermark))
        closed = max(closed, watermark)
    return found


def windows_of(window: TimeWindow, time: int) -> set[int]:
    """The ends of the windows that a time lies in."""
    last = time // window.slide * window.slide
    starts = range(last, time - window.size, -window.slide)
    return {start + window.size for start in starts}


def meets(window: Window, one: int, other: int, closed: int) -> bool:
    """Whether two times belong together, in a window that was not closed."""
    if isinstance(window, WithinWindow):
        return abs(one - other) <= window.length
    both = windows_of(window, one) & windows_of(window, other)
    return any(end > closed for end in both)


def is_over(window: Window, time: int, watermark: int) -> bool:
    """Whether nothing can come any more that meets a value."""
    if isinstance(window, WithinWindow):
        return time + window.length < watermark
    return max(windows_of(window, time)) <= watermark


def expected(
    window: Window, how: JoinKind, epochs: Epochs
) -> list[Counter[tuple[Any, Any, Any, int]]]:
    """The plain answer of each epoch: every value is compared with every one before it."""
    before: list[Row] = []
    done: set[Any] = set()
    answers = []
    closed = BEGINNING
    for rows, watermark in epochs:
        answer: Counter[tuple[Any, Any, Any, int]] = Counter()
        watermark = max(watermark, closed)
        for row in rows:
            for other in before:
                pair = {side: (value, time) for _, time, (side, value) in (row, other)}
                if (
                    row[0] == other[0]
                    and len(pair) == 2
                    and meets(window, row[1], other[1], closed)
                ):
                    (left, _), (right, _) = pair["left"], pair["right"]
                    answer[row[0], left, right, max(row[1], other[1])] += 1
                    done.update((left, right))
            before.append(row)
        for key, time, (side, value) in before:
            if value in done or not is_over(window, time, watermark):
                continue
            done.add(value)
            if how in (side, "outer"):
                both = (value, None) if side == "left" else (None, value)
                answer[key, *both, time] += 1
        answers.append(answer)
        closed = watermark
    return answers


def answers_of(rig: JoinRig, epochs: Epochs) -> list[Counter[tuple[Any, ...]]]:
    """What a join gives in each epoch."""
    found = []
    for rows, watermark in epochs:
        rig.results.clear()
        rig.run(rows, watermark)
        found.append(Counter(rig.results))
    return found


def held(rig: JoinRig) -> Sequence[Any]:
    """All values that the nodes keep."""
    every = np.ones(SLOTS, bool)
    return [
        value for owner in rig.owners for _, values in owner.state.items(every) for value in values
    ]
