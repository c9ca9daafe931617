"""Windows: which values of a key are reduced together, and when the result is given.

Frozen descriptions, checked when they are made, and the arithmetic of their bounds. All lengths
are microseconds, as event times are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, reduce
from math import gcd
from typing import Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError
from millstream.times import BEGINNING, END, FIRST, LAST, micros

Timing = Literal["early", "on_time"]
Time = TypeVar("Time", int, npt.NDArray[np.int64])
# The first words of these windows as text; checkpoints record them (``identity.windows_text``).
TUMBLING: Final = "tumbling"
SLIDING: Final = "sliding"
_REPRESENTABLE: Final = (FIRST + 1, LAST - 1)  # FIRST and LAST stand for all times beyond them


class ProcessingTime:
    """The mark that values are placed in windows by the time at which they are read."""

    def __repr__(self) -> str:
        return "ms.processing_time"


processing_time: Final = ProcessingTime()
"""For ``time=``: values count at the time at which their epoch was admitted."""


@dataclass(frozen=True)
class TimeWindow:
    """Windows of one size, a new one every slide; they begin at multiples of it."""

    size: int
    slide: int

    @property
    def is_tumbling(self) -> bool:
        return self.size == self.slide

    def first_start(self, time: Time) -> Time:
        """The start of the first window that includes a time."""
        return (time - self.size) // self.slide * self.slide + self.slide

    def last_end(self, time: Time) -> Time:
        """The end of the last window that includes a time."""
        return time // self.slide * self.slide + self.size

    def ends_within(self, after: int, until: int, panes: Sequence[int], pane: int) -> Iterator[int]:
        """The ends in (after, until] of windows that include any of some panes, in order.

        Panes are the starts of those that have rows, in order, and of one length.
        """
        at = 0
        end = max(after, BEGINNING)
        while at < len(panes):
            # The next end that is later, and whose window reaches the next pane; ends lie at a
            # multiple of the slide plus the size.
            least = max(end + 1, panes[at] + pane)
            end = least + (self.size - least) % self.slide
            if end > until:
                return
            at = bisect_left(panes, end - self.size)
            if at < len(panes) and panes[at] < end:
                yield end

    def open_from(self, watermark: int) -> int:
        """The start of the first window that a watermark has not closed."""
        return _unless_extreme(watermark, self.first_start(watermark))

    def earliest_on_time(self, closed: int) -> int:
        """The earliest event time that is in a window which is not closed."""
        return self.first_start(closed)

    @property
    def representable_range(self) -> tuple[int, int]:
        """The first and the last event time whose windows have bounds that datetimes represent."""
        first, last = _REPRESENTABLE
        start = -(-FIRST // self.slide) * self.slide  # of the first such window
        first = max(first, start - self.slide + self.size)
        return first, min(last, (LAST - self.size) // self.slide * self.slide + self.slide - 1)

    def first_match(self, time: Time) -> Time:
        """Of joins: the earliest time that shares a window with each of these."""
        return self.first_start(time)

    def last_match(self, time: Time) -> Time:
        """Of joins: the latest time that shares a window with each of these."""
        return self.last_end(time) - 1

    def __str__(self) -> str:
        if self.is_tumbling:
            return f"{TUMBLING} {length_text(self.size)}"
        return f"{SLIDING} {length_text(self.size)} every {length_text(self.slide)}"


@dataclass(frozen=True)
class SessionWindow:
    """The values of a key that follow each other with less than a gap between."""

    gap: int

    def last_end(self, time: int) -> int:
        """The end of a session whose last value is of a time."""
        return time + self.gap

    def earliest_on_time(self, closed: int) -> int:
        """The earliest event time whose session is not closed, without other values."""
        return closed - self.gap + 1

    @property
    def representable_range(self) -> tuple[int, int]:
        """The first and the last event time whose sessions have bounds that datetimes represent."""
        first, last = _REPRESENTABLE
        return first, min(last, LAST - self.gap)

    def __str__(self) -> str:
        return f"session, gap {length_text(self.gap)}"


class _Timeless:
    """Windows that do not end by event time."""

    def last_end(self, time: int) -> int:
        return time

    def earliest_on_time(self, closed: int) -> int:
        return BEGINNING

    representable_range = _REPRESENTABLE


@dataclass(frozen=True)
class CountWindow(_Timeless):
    """So many values of a key, in the order of their arrival; a result every ``slide`` values."""

    size: int
    slide: int

    def next_end(self, count: int) -> int:
        """The end of the first window that ends after so many values."""
        return count // self.slide * self.slide + self.slide

    def bounds(self, after: int, until: int) -> Iterator[tuple[int, int]]:
        """The windows that end with a value of number (after, until]."""
        for end in range(self.next_end(after), until + 1, self.slide):
            yield max(end - self.size, 0), end

    def __str__(self) -> str:
        return f"count {self.size} every {self.slide}"


@dataclass(frozen=True)
class EveryCount:
    """Fires when a key has that many new values."""

    count: int

    def __str__(self) -> str:
        return f"every {self.count} values"


@dataclass(frozen=True)
class EveryTime:
    """Fires for keys with new values when that much time has passed."""

    length: int

    def __str__(self) -> str:
        return f"every {length_text(self.length)}"


@dataclass(frozen=True)
class OnWatermark:
    """Fires for keys with new values when the watermark has passed them."""

    def __str__(self) -> str:
        return "on watermark"


Trigger = EveryCount | EveryTime | OnWatermark


@dataclass(frozen=True)
class GlobalWindow(_Timeless):
    """All values of a key, from the first on; a trigger decides when results are emitted."""

    trigger: Trigger

    def __str__(self) -> str:
        return f"global, {self.trigger}"


@dataclass(frozen=True)
class WithinWindow:
    """Of joins: pairs of values whose times differ by a length at most."""

    length: int

    def last_end(self, time: int) -> int:
        """The latest time that matches a time."""
        return time + self.length

    def earliest_on_time(self, closed: int) -> int:
        """The earliest event time that is not late."""
        return closed

    representable_range = _REPRESENTABLE

    def open_from(self, watermark: int) -> int:
        """The earliest time that may still match values behind a watermark."""
        return _unless_extreme(watermark, watermark - self.length)

    def first_match(self, time: Time) -> Time:
        """The earliest time that matches each of these."""
        return time - self.length

    def last_match(self, time: Time) -> Time:
        """The latest time that matches each of these."""
        return time + self.length

    def __str__(self) -> str:
        return f"within {length_text(self.length)}"


Window = TimeWindow | SessionWindow | CountWindow | GlobalWindow | WithinWindow


@dataclass(frozen=True)
class Windowing:
    """The windows of a job, and their options.

    ``lateness`` is None for that of the sources. ``early`` is the interval of early results.
    ``panes`` is None if measured rates decide.
    """

    windows: tuple[Window, ...]
    processing_time: bool = False
    lateness: int | None = None
    early: int | None = None
    ordered: bool = False
    panes: bool | None = None

    def __str__(self) -> str:
        return ", ".join(map(str, self.windows))

    @cached_property
    def time_windows(self) -> tuple[TimeWindow, ...]:
        """Its sliding and tumbling windows."""
        return tuple(w for w in self.windows if isinstance(w, TimeWindow))

    @cached_property
    def pane(self) -> int:
        """The greatest common divisor of all sizes and slides."""
        return reduce(gcd, (n for w in self.time_windows for n in (w.size, w.slide)))

    @property
    def slides(self) -> bool:
        """Whether any value is in more than one window."""
        return len(self.windows) > 1 or any(not w.is_tumbling for w in self.time_windows)

    @property
    def is_merging(self) -> bool:
        """Whether windows grow with their values: then only their operator knows what is late."""
        sessions = any(isinstance(window, SessionWindow) for window in self.windows)
        return sessions and not self.processing_time

    def last_end(self, time: int) -> int:
        """The end of the last window that may include a value of a time."""
        return max(window.last_end(time) for window in self.windows)

    def earliest_on_time(self, closed: int) -> int:
        """The earliest event time that is in a window which is not closed, and representable."""
        first, _ = self.representable_range
        return max(first, min(window.earliest_on_time(closed) for window in self.windows))

    @property
    def representable_range(self) -> tuple[int, int]:
        """The first and the last event time whose windows have bounds that datetimes represent."""
        ranges = [window.representable_range for window in self.windows]
        return max(first for first, _ in ranges), min(last for _, last in ranges)

    @property
    def by_two_stacks(self) -> tuple[TimeWindow, ...]:
        """Those that overlap and have more than two panes; fewer are as quickly merged."""
        return tuple(w for w in self.time_windows if w.size > max(w.slide, 2 * self.pane))

    @property
    def paying_rate(self) -> float | None:
        """The rate, in values of a key per second, above which panes pay; None without overlap.

        Without panes, each value is added to every window that includes it; with panes, it is
        added once, and each window merges its panes. For one window: t (size - slide) > size /
        pane, the rule of the C-MR thesis.
        """
        windows = self.time_windows
        again = sum(w.size / w.slide for w in windows) - 1
        if again <= 0:
            return None
        return sum(w.size / self.pane / w.slide for w in windows) / again * 1e6


def pane_start(time: Time, pane: int) -> Time:
    """The start of the pane that includes a time."""
    return time // pane * pane


def _unless_extreme(watermark: int, bound: int) -> int:
    """A bound that follows from a watermark, unless nothing or everything is closed."""
    if watermark >= END:
        return END
    return BEGINNING if watermark <= BEGINNING else bound


def sliding(size: timedelta, slide: timedelta) -> TimeWindow:
    """Windows of ``size``, one every ``slide``: overlapping ones, if the slide is shorter.

    >>> ms.sliding(timedelta(minutes=5), timedelta(minutes=1))
    TimeWindow(size=300000000, slide=60000000)
    """
    window = TimeWindow(_length("size", size), _length("slide", slide))
    if window.slide > window.size:
        raise ConfigError(
            f"slide must be at most size, or values between windows would be lost; got "
            f"slide={slide} and size={size}"
        )
    return window


def tumbling(size: timedelta) -> TimeWindow:
    """Windows of ``size``, one after the other.

    >>> str(ms.tumbling(timedelta(hours=1)))
    'tumbling 1h'
    """
    return TimeWindow(_length("size", size), _length("size", size))


def session(gap: timedelta) -> SessionWindow:
    """A window for each burst of a key's values: it ends after ``gap`` without a value.

    >>> str(ms.session(timedelta(minutes=30)))
    'session, gap 30m'
    """
    return SessionWindow(_length("gap", gap))


def count_window(size: int, slide: int | None = None) -> CountWindow:
    """The last ``size`` values of a key, every ``slide`` values (default: every ``size``).

    >>> ms.count_window(10, 5)
    CountWindow(size=10, slide=5)
    """
    window = CountWindow(_count("size", size), _count("slide", size if slide is None else slide))
    if window.slide > window.size:
        raise ConfigError(f"slide must be at most size, got slide={slide} and size={size}")
    return window


def global_window(trigger: Trigger) -> GlobalWindow:
    """All values of a key since the first; ``trigger`` decides when results are emitted.

    >>> ms.global_window(ms.every(100))
    GlobalWindow(trigger=EveryCount(count=100))
    """
    if not isinstance(trigger, EveryCount | EveryTime | OnWatermark):
        raise ConfigError(f"trigger must be ms.every(...) or ms.on_watermark(), got {trigger!r}")
    return GlobalWindow(trigger)


def every(amount: int | timedelta) -> EveryCount | EveryTime:
    """Fire after so many values of a key, or after so much time.

    >>> ms.every(timedelta(seconds=10))
    EveryTime(length=10000000)
    """
    if isinstance(amount, timedelta):
        return EveryTime(_length("every", amount))
    return EveryCount(_count("every", amount))


def on_watermark() -> OnWatermark:
    """Fire when the watermark has passed all values of a key.

    >>> newest = ms.global_window(ms.on_watermark())
    """
    return OnWatermark()


def as_windows(given: object) -> tuple[Window, ...]:
    """Validate ``window=``: one window, or several of time."""
    several = list(given) if isinstance(given, Sequence) else [given]
    windows = [w for w in several if isinstance(w, Window)]
    if len(windows) < len(several) or not windows:
        raise ConfigError(
            "window must be ms.sliding, ms.tumbling, ms.session, ms.count_window or "
            f"ms.global_window, or a list of sliding and tumbling ones, got {given!r}"
        )
    if len(windows) > 1:
        if not all(isinstance(w, TimeWindow) for w in windows):
            raise ConfigError("several windows on one job must all be sliding or tumbling")
        if len(set(windows)) < len(windows):
            raise ConfigError(f"the windows of a job must differ, got {given!r}")
    return tuple(windows)


def length_text(length: int) -> str:
    """A length of time as text: ``1h30m``, ``250ms``."""
    text = ""
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        count, length = divmod(length, size)
        text += f"{count}{unit}" if count else ""
    for unit, size in (("s", 1_000_000), ("ms", 1000), ("us", 1)):
        count, length = divmod(length, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _length(name: str, length: object) -> int:
    if not isinstance(length, timedelta) or length <= timedelta(0):
        raise ConfigError(f"{name} must be a positive datetime.timedelta, got {length!r}")
    return micros(length)


def _count(name: str, count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"{name} must be a whole number of 1 or more, got {count!r}")
    return count
