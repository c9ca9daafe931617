"""The plain answer to windows that are not of time: count windows, global windows, and joins.

Each defines its results in an epoch, which values remain, and the state of a key; all is
computed from the values alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from millstream.times import BEGINNING, END, instant

Show = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Value:
    """A value that windows have taken, of a source, when all before ``closed`` was closed.

    It is ``fresh`` until a result has accounted for it.
    """

    key: str
    value: Any
    time: int
    source: int = -1
    closed: int = BEGINNING
    fresh: bool = True


@dataclass(frozen=True)
class Moment:
    """What an epoch is for a job: its watermarks, and whether results by the clock are due."""

    closed: int
    watermark: int
    is_due: bool


class KeyedWindow(ABC):
    """A window of the values of a key."""

    @abstractmethod
    def close(
        self, show: Show, known: Sequence[Value], taken: Sequence[Value], moment: Moment
    ) -> tuple[list[Any], list[Value]]:
        """What it gives, and the values that stay."""

    @abstractmethod
    def state(self, show: Show, values: Sequence[Value]) -> Any:
        """The state of a key with such values."""

    def last_end(self, time: int) -> int:
        """When nothing more can come that belongs to a value of a time."""
        return time

    def is_late(self, time: int, closed: int) -> bool:
        """Whether a value comes too late."""
        return False


def by_key(values: Iterable[Value]) -> dict[str, list[Value]]:
    """Values of each key, in their order."""
    found: dict[str, list[Value]] = {}
    for value in values:
        found.setdefault(value.key, []).append(value)
    return found


def row(key: str, result: Any, start: Any, end: Any, timing: str = "on_time") -> Any:
    """A result as readers see it."""
    if isinstance(result, dict):
        return (key, *result.values(), start, end, timing)
    return (key, result, start, end)


def plain_value(result: Any) -> Any:
    """A result as it is seen in the state."""
    return result["value"] if isinstance(result, dict) and set(result) == {"value"} else result


@dataclass(frozen=True)
class Count(KeyedWindow):
    """The last values of a key, by number, whenever some more have come.

    ``folded`` ones show the result so far of the next window, others the values that it has.
    """

    size: int
    slide: int
    folded: bool

    def close(
        self, show: Show, known: Sequence[Value], taken: Sequence[Value], moment: Moment
    ) -> tuple[list[Any], list[Value]]:
        rows = []
        before = by_key(known)
        for key, values in by_key([*known, *taken]).items():
            for end in range(self.slide, len(values) + 1, self.slide):
                if end > len(before.get(key, ())):
                    start = max(end - self.size, 0)
                    rows.append(row(key, show([v.value for v in values[start:end]]), start, end))
        return rows, [*known, *taken]

    def state(self, show: Show, values: Sequence[Value]) -> Any:
        following = (len(values) // self.slide + 1) * self.slide
        needed = [v.value for v in values[max(following - self.size, 0) :]]
        if not self.folded:
            return tuple(needed)
        return plain_value(show(needed)) if needed else None


@dataclass(frozen=True)
class Global(KeyedWindow):
    """All values of a key; given after so many new ones, by the clock, or by the watermark."""

    trigger: int | Literal["clock", "watermark"]

    def close(
        self, show: Show, known: Sequence[Value], taken: Sequence[Value], moment: Moment
    ) -> tuple[list[Any], list[Value]]:
        rows: list[Any] = []
        kept: list[Value] = []
        for key, values in by_key([*known, *taken]).items():
            fires = self._fires([value.time for value in values if value.fresh], moment)
            if fires:
                rows.append(row(key, show([value.value for value in values]), None, None))
            kept.extend(replace(v, fresh=v.fresh and not fires) for v in values)
        return rows, kept

    def _fires(self, times: list[int], moment: Moment) -> bool:
        if not times:
            return False
        if self.trigger == "clock":
            return moment.is_due
        if self.trigger == "watermark":
            return max(times) < moment.watermark
        return len(times) >= self.trigger

    def state(self, show: Show, values: Sequence[Value]) -> Any:
        return plain_value(show([value.value for value in values]))


@dataclass(frozen=True)
class Join(KeyedWindow):
    """Pairs of values of two sources that are near in time, or lie in one window.

    ``size`` without a slide is how far apart they may be. ``outer`` also gives left values that
    have met none. Time is kept, and given up, in panes.
    """

    left: int
    size: int
    slide: int | None
    outer: bool
    pane: int

    def close(
        self, show: Show, known: Sequence[Value], taken: Sequence[Value], moment: Moment
    ) -> tuple[list[Any], list[Value]]:
        everything = by_key([*known, *taken])
        new = set(map(id, taken))
        rows: list[Any] = []
        alone: list[Value] = []
        for key, values in everything.items():
            right = [value for value in values if value.source != self.left]
            for one in values:
                if one.source != self.left:
                    continue
                mates = [other for other in right if self._meet(one, other)]
                for other in mates:
                    if id(one) in new or id(other) in new:
                        time = instant(max(one.time, other.time))
                        rows.append((key, one.value, other.value, time))
                if self.outer and one.fresh and self._is_done(one.time, moment.watermark):
                    alone.append(one)
                    rows += [] if mates else [(key, one.value, None, instant(one.time))]
        given = set(map(id, alone))
        horizon = self._horizon(moment.watermark)
        kept = [
            replace(v, fresh=v.fresh and id(v) not in given)
            for v in (*known, *taken)
            if v.time // self.pane * self.pane >= horizon
        ]
        return rows, kept

    def _meet(self, one: Value, other: Value) -> bool:
        early, late = sorted((one.time, other.time))
        if self.slide is None:
            return late - early <= self.size
        end = self.last_end(early)  # of the last window that the earlier one is in
        return late < end and end > max(one.closed, other.closed)

    def _is_done(self, time: int, watermark: int) -> bool:
        if self.slide is None:
            return time + self.size < watermark
        return self.last_end(time) <= watermark

    def _horizon(self, watermark: int) -> int:
        """Before which pane nothing is needed any more."""
        if watermark in (BEGINNING, END):
            return watermark
        if self.slide is None:
            needed = watermark - self.size * (2 if self.outer else 1)
        else:
            needed = ((watermark - self.size) // self.slide + 1) * self.slide
            if self.outer:
                needed = ((needed - self.size) // self.slide + 1) * self.slide
        return needed // self.pane * self.pane

    def state(self, show: Show, values: Sequence[Value]) -> Any:
        return tuple(
            sorted((value.source != self.left, value.time, value.value) for value in values)
        )

    def last_end(self, time: int) -> int:
        if self.slide is None:
            return time + self.size
        return time // self.slide * self.slide + self.size

    def is_late(self, time: int, closed: int) -> bool:
        return time < closed if self.slide is None else self.last_end(time) <= closed


def numbered(values: Iterable[Any]) -> Iterator[tuple[bool, int, Any]]:
    """The values that wait in a join, as ``Join.state`` has them."""
    return ((side == "right", time, value) for side, time, value in values)
