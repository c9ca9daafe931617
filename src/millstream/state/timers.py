"""Timers: moments at which a key acts, also if nothing arrives for it.

A timer is an entry of its key, under a name that no user can write: so it is replicated,
checkpointed, spilled, moved and restored as all entries are. Its value is its time in microseconds.
When timers are due is derived from these entries (:mod:`millstream.state.timer_index`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeGuard

from millstream.errors import MillstreamError
from millstream.ring.scalars import plain_value
from millstream.state.key_view import GONE, Change, Entries, KeyView, copy_entries
from millstream.state.values import value_text
from millstream.times import BEGINNING, END, FIRST, LAST, instant, micros, since_epoch

TimeDomain = Literal["processing", "event"]
DOMAINS: Final[tuple[TimeDomain, ...]] = ("processing", "event")


class _Mark:
    """Begins the names of entries that are timers; there is one in each process."""

    _instance: _Mark | None = None

    def __new__(cls) -> _Mark:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __reduce__(self) -> Any:
        return _Mark, ()

    def __repr__(self) -> str:
        return "TIMER"


_MARK: Final = _Mark()
TimerEntry = tuple[_Mark, TimeDomain, str]
"""The name of an entry that is a timer."""


@lru_cache(maxsize=4096)  # so that the timers of a million keys share their names
def timer_entry(time: TimeDomain, name: str) -> TimerEntry:
    """The name of a timer's entry."""
    return _MARK, time, name


def is_timer(name: object) -> TypeGuard[TimerEntry]:
    """Whether an entry of this name is a timer."""
    return type(name) is tuple and len(name) == 3 and name[0] is _MARK


def timers_in(entries: Mapping[Any, Any]) -> dict[TimerEntry, int]:
    """The timers among the entries of a key."""
    return {name: at for name, at in entries.items() if is_timer(name)}


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a key: its name, its time (in UTC), and by which clock it fires.

    ``time`` is "processing", the time of epochs, or "event", the watermark of the job.
    """

    name: str
    at: datetime
    time: TimeDomain = "processing"


def timer_of(entry: TimerEntry, at: int) -> Timer:
    """A timer as users see it."""
    return Timer(entry[2], instant(at), entry[1])


def _sorted_timers(waiting: Mapping[TimerEntry, int]) -> list[Timer]:
    in_order = sorted(waiting.items(), key=lambda item: (item[1], item[0][2], item[0][1]))
    return [timer_of(entry, at) for entry, at in in_order]


class TimerError(MillstreamError):
    """A timer cannot be set, cancelled or read like this."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"


@dataclass(frozen=True, slots=True)
class TimerClock:
    """The time of a job in an epoch, by both clocks, in microseconds.

    ``event`` is the watermark: timers up to it are due. An epoch that ends the stream has one after
    all times; what is set by then, it cannot reach, so that ``settled`` is the watermark of the
    epoch before. ``has_event_time`` is false if no event time of the job is known.
    """

    processing: int
    event: int = BEGINNING
    settled: int = BEGINNING
    has_event_time: bool = False

    def reached(self, time: TimeDomain) -> int:
        """The time up to which the timers that wait when timers begin to fire are due."""
        return self.processing if time == "processing" else self.event

    def reached_by_new(self, time: TimeDomain) -> int:
        """The time up to which timers that are set while timers fire are due."""
        return self.processing if time == "processing" else self.newest_event

    @property
    def newest_event(self) -> int:
        """The watermark; in an epoch that ends the stream, that of the epoch before."""
        return self.settled if self.event >= END else self.event


class Timers:
    """The timers of a key, as its functions see and change them during one epoch.

    In processing time a timer fires in the first epoch whose time has reached it; in event time,
    in the first whose watermark has. Each name stands for one timer in each of the two.

    >>> def remind(user, orders, state):
    ...     state.timers.set("remind", after=timedelta(days=1))
    >>> def on_timer(user, timer, state):
    ...     yield user, timer.name
    >>> reminders = orders.key_by("user").reduce("remind", remind, on_timer=on_timer)
    """

    __slots__ = ("_changes", "_clock", "_has_event_time", "_newest", "_waiting")

    def __init__(
        self,
        waiting: dict[TimerEntry, int],
        clock: TimerClock,
        *,
        newest: int | None = None,
        fired: TimerEntry | None = None,
    ) -> None:
        """``newest`` is the newest event time of the values; the timer that ``fired`` is gone."""
        self._waiting = waiting
        self._changes: dict[TimerEntry, Any] = {}
        self._clock = clock
        self._newest = newest
        self._has_event_time = clock.has_event_time
        if fired is not None:
            del waiting[fired]
            self._changes[fired] = GONE
            self._has_event_time |= fired[1] == "event"

    def set(
        self,
        name: str,
        *,
        at: datetime | None = None,
        after: timedelta | None = None,
        time: TimeDomain = "processing",
    ) -> None:
        """Set a timer for a time, or for a while from now; one of this name is replaced.

        From now means: from the time of the epoch; in event time, from the newest event time of the
        values that the function was called with, or from the watermark if that is further on.
        A time already reached fires in this epoch.
        """
        entry = _entry(name, time)
        if time == "event" and not self._has_event_time:
            raise TimerError(
                f"timer {name!r} is in event time, which the values of this job do not have",
                "yield (key, value, timestamp) from the map, or name the column of event times "
                "with time= beside on_timer=",
            )
        moment = self._moment(name, at, after, time)
        if not FIRST <= moment <= LAST:
            raise TimerError(
                f"timer {name!r} is set for a time that no datetime can represent",
                "give a time between the years 1 and 9999",
            )
        self._waiting[entry] = self._changes[entry] = moment

    def _moment(
        self, name: str, at: datetime | None, after: timedelta | None, time: TimeDomain
    ) -> int:
        if (at is None) == (after is None):
            raise TimerError(f"timer {name!r} has {_both_or_none(at)}", "give one of the two")
        if after is None:
            return _at(name, at, time)
        length = plain_value(after)
        if not isinstance(length, timedelta) or length < timedelta(0):
            raise TimerError(
                f"timer {name!r} has after={value_text(after)}",
                "give a datetime.timedelta of 0 or more",
            )
        return self._now(name, time) + micros(length)

    def _now(self, name: str, time: TimeDomain) -> int:
        if time == "processing":
            return self._clock.processing
        now = self._clock.newest_event
        if self._newest is not None:
            now = max(now, self._newest)
        if now <= BEGINNING:
            raise TimerError(
                f"timer {name!r} has after= in event time, but there is no watermark yet, nor an "
                "event time among the values",
                "give at=",
            )
        return now

    def cancel(self, name: str, *, time: TimeDomain = "processing") -> None:
        """Cancel a timer; does nothing if there is none of this name."""
        entry = _entry(name, time)
        if self._waiting.pop(entry, None) is not None:
            self._changes[entry] = GONE

    def get(self, name: str, *, time: TimeDomain = "processing") -> datetime | None:
        """The time for which a timer is set, in UTC; None if there is none of this name."""
        at = self._waiting.get(_entry(name, time))
        return None if at is None else instant(at)

    def list(self) -> list[Timer]:
        """The timers that wait, by time and name."""
        return _sorted_timers(self._waiting)

    def __repr__(self) -> str:
        return f"Timers({self.list()!r})"

    @property
    def changes(self) -> Mapping[TimerEntry, Any]:
        """The timers that were set, and those that are gone."""
        return self._changes

    @property
    def newly_set(self) -> Iterator[tuple[TimerEntry, int]]:
        """The timers that were set, and not cancelled since."""
        return ((entry, at) for entry, at in self._changes.items() if at is not GONE)

    def changed_in(self, change: Change | None) -> Change | None:
        """The changes of a key with those of its timers; clearing its entries clears no timer."""
        if change is not None and change.cleared:
            return Change(change.writes | self._waiting, True, False) if self._waiting else change
        if not self._changes:
            return change
        plain = GONE not in self._changes.values()
        writes: Entries = dict(self._changes)
        if change is None:
            return Change(writes, False, plain)
        return Change(change.writes | writes, False, plain and change.plain)


def _entry(name: object, time: object) -> TimerEntry:
    if not isinstance(name, str) or not name:
        raise TimerError(f"a timer has the name {value_text(name)}", "give a non-empty string")
    if time not in DOMAINS:
        raise TimerError(
            f"timer {name!r} has time={value_text(time)}", "give 'processing' or 'event'"
        )
    return timer_entry(time, str.__str__(name))  # also of a member of an enumeration


def _both_or_none(at: object) -> str:
    return "neither at= nor after=" if at is None else "both at= and after="


def _at(name: str, at: object, time: TimeDomain) -> int:
    moment = plain_value(at)
    if isinstance(moment, datetime) and moment.utcoffset() is None and time == "event":
        moment = moment.replace(tzinfo=UTC)  # as event times without a zone are
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise TimerError(
            f"timer {name!r} has at={value_text(at)}",
            "give a datetime with a time zone, such as tzinfo=datetime.UTC",
        )
    return since_epoch(moment)


class TimedView(KeyView):
    """A key's state with its ``timers``, as the functions of a job see it during one epoch."""

    __slots__ = ("_clock", "_entries", "_fired", "_newest", "_timers")

    def __init__(
        self,
        entries: Entries | None,
        clock: TimerClock,
        *,
        newest: int | None = None,
        fired: TimerEntry | None = None,
    ) -> None:
        """Of the entries some are timers; one that has ``fired`` is gone."""
        base = None
        if entries:  # no name is hashed here: most functions leave the timers of a key alone
            base = {
                name: value
                for name, value in entries.items()
                if type(name) is not tuple or not is_timer(name)
            }
        super().__init__(base)
        self._entries = entries
        self._clock = clock
        self._newest = newest
        self._fired = fired
        self._timers: Timers | None = None

    @property
    def timers(self) -> Timers:
        """The timers of the key."""
        if self._timers is None:
            waiting = timers_in(self._entries) if self._entries else {}
            self._timers = Timers(waiting, self._clock, newest=self._newest, fired=self._fired)
        return self._timers

    @property
    def newly_set(self) -> Iterator[tuple[TimerEntry, int]]:
        """The timers that the function has set."""
        return iter(()) if self._timers is None else self._timers.newly_set

    def close(self) -> Change | None:
        """The changes of entries and timers, with mutable values pickled."""
        change = super().close()
        is_cleared = change is not None and change.cleared
        if self._timers is None and self._fired is None and not is_cleared:
            return change
        return self.timers.changed_in(change)


class KeyEntries(dict[str, Any]):
    """The entries of a key as users read them, and the ``timers`` that wait, by time and name."""

    __slots__ = ("timers",)

    def __init__(self, entries: Entries, timers: list[Timer]) -> None:
        super().__init__(entries)
        self.timers = timers

    def __reduce__(self) -> Any:
        return KeyEntries, (dict(self), self.timers)

    def __eq__(self, other: object) -> bool:
        """As a dictionary; two of these have equal timers, too."""
        same_timers = not isinstance(other, KeyEntries) or self.timers == other.timers
        return same_timers and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        shown = super().__repr__()
        if not self.timers:
            return shown
        timers = (f"{timer.name!r} at {timer.at} ({timer.time})" for timer in self.timers)
        return f"{shown} with timers {', '.join(timers)}"


def read_entries(entries: Entries) -> Entries:
    """Committed entries as users read them: a copy that may be changed, with its timers."""
    waiting = timers_in(entries)
    kept = {name: v for name, v in entries.items() if name not in waiting} if waiting else entries
    return KeyEntries(copy_entries(kept), _sorted_timers(waiting))
