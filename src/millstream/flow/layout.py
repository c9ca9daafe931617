"""Where boxes and links of a drawing go: rows from top to bottom, few crossings, upright links.

Every box is below those that it reads, and every stage below the one before it. Links that pass
several rows are led through them by invisible points, so that they run between boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

GAP_X: Final = 26
_GAP_Y: Final = 38
_MARGIN: Final = 24
_STAGE: Final = 26  # for the name of a stage above its first row
_SWEEPS: Final = 8
_SETTLING: Final = 12
_POINT: Final = 10.0


@dataclass(frozen=True)
class Box:
    """The size of what is drawn for a vertex."""

    width: float
    height: float


@dataclass(frozen=True)
class Link:
    """From a vertex to one that reads it."""

    source: int
    target: int
    kind: str


@dataclass(frozen=True)
class Laid:
    """Where everything is: centers of boxes, points of links, tops and bottoms of stages."""

    width: float
    height: float
    centers: tuple[tuple[float, float], ...]
    paths: tuple[tuple[Link, tuple[tuple[float, float], ...]], ...]
    bands: tuple[tuple[float, float], ...]


def lay_out(boxes: Sequence[Box], links: Sequence[Link], stages: Sequence[int]) -> Laid:
    """Place boxes and links; vertices are in an order in which each comes after its inputs."""
    rows = _rows(links, stages)
    grid = _Grid(boxes, links, rows)
    grid.order()
    xs = grid.settle()
    tops, heights = _heights(boxes, rows, stages)
    centers = tuple((xs[at], tops[row] + heights[row] / 2) for at, row in enumerate(rows))
    paths = []
    for link, chain in zip(links, grid.chains, strict=True):
        start = (xs[link.source], centers[link.source][1] + boxes[link.source].height / 2)
        end = (xs[link.target], centers[link.target][1] - boxes[link.target].height / 2)
        middle = [
            (xs[point], tops[row] + side * heights[row])
            for row, point in enumerate(chain, rows[link.source] + 1)
            for side in (0, 1)
        ]
        paths.append((link, (start, *middle, end)))
    width = max(x + grid.widths[at] / 2 for at, x in enumerate(xs)) + _MARGIN
    bands = _bands(rows, stages, tops, heights)
    return Laid(max(width, 220.0), bands[-1][1], centers, tuple(paths), bands)


def _rows(links: Sequence[Link], stages: Sequence[int]) -> list[int]:
    """The row of each box: below what it reads, and below all of earlier stages."""
    rows = [0] * len(stages)
    first = 0
    for stage in range(max(stages) + 1):
        for at, own in enumerate(stages):
            if own == stage:
                above = [rows[link.source] + 1 for link in links if link.target == at]
                rows[at] = max([first, *above])
        first = 1 + max([row for row, own in zip(rows, stages, strict=True) if own == stage])
    return rows


def _heights(
    boxes: Sequence[Box], rows: Sequence[int], stages: Sequence[int]
) -> tuple[list[float], list[float]]:
    heights = [0.0] * (max(rows) + 1)
    stage_of = [0] * len(heights)
    for box, row, stage in zip(boxes, rows, stages, strict=True):
        heights[row] = max(heights[row], box.height)
        stage_of[row] = stage
    tops: list[float] = []
    y = 0.0
    for row, height in enumerate(heights):
        if row == 0 or stage_of[row] != stage_of[row - 1]:
            y += _STAGE
        tops.append(y)
        y += height + _GAP_Y
    return tops, heights


def _bands(
    rows: Sequence[int], stages: Sequence[int], tops: Sequence[float], heights: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    bands: list[tuple[float, float]] = []
    top = 0.0
    for stage in range(max(stages) + 1):
        last = max(row for row, own in zip(rows, stages, strict=True) if own == stage)
        bottom = tops[last] + heights[last] + _GAP_Y / 2
        bands.append((top, bottom))
        top = bottom
    return tuple(bands)


class _Grid:
    """The boxes, and the points through which links pass, in rows."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link], rows: Sequence[int]) -> None:
        self.widths = [box.width for box in boxes]
        self.chains: list[list[int]] = []
        self._lines: list[list[int]] = [[] for _ in range(max(rows) + 1)]
        for at, row in enumerate(rows):
            self._lines[row].append(at)
        self._above: list[list[int]] = [[] for _ in boxes]
        self._below: list[list[int]] = [[] for _ in boxes]
        for link in links:
            chain: list[int] = []
            before = link.source
            for row in range(rows[link.source] + 1, rows[link.target]):
                point = self._point(row)
                chain.append(point)
                self._join(before, point)
                before = point
            self._join(before, link.target)
            self.chains.append(chain)

    def _point(self, row: int) -> int:
        self.widths.append(_POINT)
        self._above.append([])
        self._below.append([])
        self._lines[row].append(len(self.widths) - 1)
        return len(self.widths) - 1

    def _join(self, upper: int, lower: int) -> None:
        self._below[upper].append(lower)
        self._above[lower].append(upper)

    def order(self) -> None:
        """Put each row into the order of what it is linked to, down and up by turns."""
        place = {at: float(n) for line in self._lines for n, at in enumerate(line)}
        best, fewest = [list(line) for line in self._lines], self._crossings(place)
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self._above if down else self._below
            for line in self._lines if down else reversed(self._lines):
                line.sort(key=lambda at: _mean([place[n] for n in near[at]], place[at]))
                place.update({at: float(n) for n, at in enumerate(line)})
            crossings = self._crossings(place)
            if crossings < fewest:
                best, fewest = [list(line) for line in self._lines], crossings
        self._lines = best

    def _crossings(self, place: dict[int, float]) -> int:
        count = 0
        for line in self._lines:
            ends = [(place[at], place[lower]) for at in line for lower in self._below[at]]
            count += sum((a - c) * (b - d) < 0 for a, b in ends for c, d in ends)
        return count // 2

    def settle(self) -> list[float]:
        """The middle of each box and point: near what it is linked to, with no overlaps."""
        xs = [0.0] * len(self.widths)
        for line in self._lines:
            x = 0.0
            for at in line:
                xs[at] = x + self.widths[at] / 2
                x += self.widths[at] + GAP_X
        for turn in range(_SETTLING):
            near = self._above if turn % 2 == 0 else self._below
            for line in self._lines if turn % 2 == 0 else reversed(self._lines):
                wished = [_mean([xs[n] for n in near[at]], xs[at]) for at in line]
                for at, x in zip(line, self._apart(line, wished), strict=True):
                    xs[at] = x
        left = min(x - width / 2 for x, width in zip(xs, self.widths, strict=True))
        return [x - left + _MARGIN for x in xs]

    def _apart(self, line: Sequence[int], wished: Sequence[float]) -> list[float]:
        """As near to the wishes as the order and the gaps allow: least squares, by pooling."""
        offsets, x = [0.0], 0.0
        for before, at in pairwise(line):
            x += (self.widths[before] + self.widths[at]) / 2 + GAP_X
            offsets.append(x)
        pools: list[tuple[float, int]] = []  # means of neighbours that touch, and how many
        for wish, offset in zip(wished, offsets, strict=True):
            mean, count = wish - offset, 1
            while pools and pools[-1][0] > mean:
                other, size = pools.pop()
                mean, count = (mean * count + other * size) / (count + size), count + size
            pools.append((mean, count))
        means = [mean for mean, count in pools for _ in range(count)]
        return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
