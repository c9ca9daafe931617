"""The reference answer for windows, computed from the history of all values.

Its arithmetic is its own, so that it shares no fault with the code that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import pyarrow as pa

from millstream.ring.hashing import hash_key
from millstream.sim.keyed_windows import (
    KeyedWindow,
    Value,
    by_key,
    plain_value,
    row,
)
from millstream.sim.keyed_windows import Moment as KeyedMoment
from millstream.sim.workload import Moment, Outputs, Pair, in_order
from millstream.times import BEGINNING, END, instant
from millstream.work.job_clock import Tally

Read = Callable[[Pair], tuple[int, str, int, int | None, Any]]
"""The source, key, value and time of a record, and the time as it was given."""
DirtyPanes = frozenset[tuple[int, int]]
"""The panes and slots in which something has come since early results were given."""


@dataclass(frozen=True)
class Origin:
    """How event time advances in a source."""

    lateness: int
    idle: int
    max_ahead: int


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, one every slide."""

    size: int
    slide: int


@dataclass(frozen=True)
class Session:
    """Windows that end when nothing came for a gap."""

    gap: int


@dataclass(frozen=True)
class Job:
    """A windowed job; it reads sources, or follows another windowed job."""

    at: int
    origins: Mapping[int, Origin]
    windows: list[Any]
    show: Callable[[list[Any]], Any]
    follows: int | None = None
    sides: Mapping[str, int] = field(default_factory=dict)
    early: int | None = None  # how often results of open windows are given
    key: Callable[[str], str] = str  # which one the values of a record's key have here

    @property
    def keyed(self) -> KeyedWindow | None:
        """Its window, if that is not of time."""
        [first, *_] = self.windows
        return first if isinstance(first, KeyedWindow) else None

    @property
    def pane(self) -> int:
        """The longest time that divides all sizes and slides."""
        return gcd(*(n for window in self.windows for n in (window.size, window.slide)))


@dataclass(frozen=True)
class Facts:
    """What an epoch was for a job: its watermarks, and what came of each origin.

    ``after`` is what later epochs take for its watermark.
    """

    time: int
    is_first: bool  # of its incarnation
    closed: int
    watermark: int
    origins: Mapping[int, Tally]
    after: int
    early: int = 0  # when early results were last due


@dataclass(frozen=True)
class Epoch:
    """All that is known of an epoch."""

    moment: Moment
    facts: Mapping[int, Facts]
    open: Mapping[int, tuple[Value, ...]]
    states: Mapping[int, Mapping[str, Any]]
    outputs: Outputs
    dirty: Mapping[int, DirtyPanes]


class EventTimeAnswer:
    """What windowed jobs must give; those that follow others come after them.

    Early results are emitted slot by slot, where there are new values; that alone depends on slots.
    """

    def __init__(
        self, jobs: tuple[Job, ...], read: Read, slots: int = 1, epochs: Iterable[Epoch] = ()
    ) -> None:
        self._jobs = jobs
        self._read = read
        self._slots = slots
        self._epochs = list(epochs)

    @property
    def outputs(self) -> list[Outputs]:
        return [epoch.outputs for epoch in self._epochs]

    @property
    def counted(self) -> list[dict[int, tuple[Tally, ...]]]:
        return [
            {
                job: tuple(facts.origins[at] for at in sorted(facts.origins))
                for job, facts in epoch.facts.items()
            }
            for epoch in self._epochs
        ]

    def upto(self, epoch: int) -> EventTimeAnswer:
        return EventTimeAnswer(self._jobs, self._read, self._slots, self._epochs[: epoch + 1])

    def state(self, epoch: int, job: int) -> Mapping[str, Any]:
        if epoch < 0:
            return {}
        return self._epochs[epoch].states[job]

    def touched(self, epoch: int, job: int) -> Mapping[str, int]:
        return {}

    def add(self, tasks: list[list[Pair]], moment: Moment = Moment()) -> None:  # noqa: B008
        before = self._epochs[-1] if self._epochs else None
        now = moment.now if before is None else max(moment.now, before.moment.now)
        moment = Moment(now, moment.incarnation, moment.asked)
        is_first = before is None or before.moment.incarnation != moment.incarnation
        facts: dict[int, Facts] = {}
        open_: dict[int, tuple[Value, ...]] = {}
        outputs: Outputs = {}
        given: dict[int, list[Value]] = {}
        dirty: dict[int, DirtyPanes] = {}
        records = [self._read(record) for task in tasks for record in task]
        for job in self._jobs:
            history = [epoch.facts[job.at] for epoch in self._epochs]
            closed = history[-1].after if history else BEGINNING
            if job.follows is None:
                mark = watermark_of(job.origins, history, now, is_first)
                held = before.open[job.at] if before is not None else ()
                taken, sides, tallies = _admit(job, history, records, now, closed, held)
                for side, at in job.sides.items():
                    outputs[at] = in_order(sides[side])
            else:
                mark, tallies = facts[job.follows].watermark, {}
                taken = given[job.follows]
            watermark = max(closed, mark, moment.asked)
            known = before.open[job.at] if before is not None else ()
            last = history[-1].early if history else now
            is_due = job.early is not None and bool(history) and now - last >= job.early
            keyed = job.keyed
            if keyed is not None:
                epoch = KeyedMoment(closed, watermark, is_due)
                rows, kept = keyed.close(job.show, known, taken, epoch)
                given[job.at], open_[job.at], last = [], tuple(kept), now if is_due else last
            else:
                rows, given[job.at], open_[job.at] = _close(
                    job, [*known, *taken], closed, watermark
                )
            if keyed is None and job.early is not None:
                fresh = {(v.time // job.pane * job.pane, self._slot(v.key)) for v in taken}
                dirty[job.at] = frozenset(fresh | (before.dirty[job.at] if before else set()))
                if is_due:
                    early = self._early(job, open_[job.at], dirty[job.at], watermark)
                    rows += early[0]
                    given[job.at] += early[1]
                    last, dirty[job.at] = now, frozenset()
                dirty[job.at] = frozenset(
                    n for n in dirty[job.at] if _last_end(job, n[0]) > watermark
                )
            outputs[job.at] = in_order(rows)
            after = watermark
            if watermark == END:
                seen = [t for past in history for t in past.origins.values()]
                after = max(closed, _rest(job, [*seen, *tallies.values()], facts))
            facts[job.at] = Facts(now, is_first, closed, watermark, tallies, after, last)
        states = {job.at: _state(job, open_[job.at]) for job in self._jobs}
        self._epochs.append(Epoch(moment, facts, open_, states, outputs, dirty))

    def _slot(self, key: str) -> int:
        return hash_key(key, pa.string()) % self._slots

    def _early(
        self, job: Job, values: Iterable[Value], dirty: DirtyPanes, watermark: int
    ) -> tuple[list[Any], list[Value]]:
        """The early results of open windows in slots with new values, also as downstream input."""
        rows: list[Any] = []
        given: list[Value] = []
        values = list(values)
        for window in job.windows:
            for (start, key), members in _members(window, values, watermark, END).items():
                panes = range(start, start + window.size, job.pane)
                if any((pane, self._slot(key)) in dirty for pane in panes):
                    shown, value = _result(job, window, key, start, members, "early")
                    rows.append(shown)
                    given.append(value)
        return rows, given


# -- watermarks ------------------------------------------------------------------------------


def watermark_of(
    origins: Mapping[int, Origin], history: list[Facts], now: int, is_first: bool
) -> int:
    """How far the origins let the watermark go."""
    with_time = [facts for facts in history if any(t.rows for t in facts.origins.values())]
    heard = history[-1].time if history else now
    resumed = max((facts.time for facts in history if facts.is_first), default=now)
    active: list[int] = []
    silent: list[int] = []
    for at, origin in origins.items():
        came = [facts for facts in history if at in facts.origins]
        took = [facts for facts in came if facts.origins[at].rows]
        if not took:
            began = max(with_time[0].time, resumed) if with_time else heard
            if is_first or heard - began < origin.idle:
                active.append(BEGINNING)
            continue
        newest = max(facts.origins[at].latest for facts in took)
        alive = max(f.time for f in history if f.is_first or _timed(f.origins.get(at)))
        if not is_first and heard - alive >= origin.idle:
            silent.append(newest - origin.lateness + now - alive)
        else:
            active.append(newest - origin.lateness)
    if active:
        return min(active)
    return max(silent) if silent else BEGINNING


def _rest(job: Job, tallies: list[Tally], facts: Mapping[int, Facts]) -> int:
    """When all windows are over that hold what has come so far."""
    newest = max((tally.latest for tally in tallies), default=BEGINNING)
    if job.follows is not None:
        newest = max(newest, facts[job.follows].after - 1)
    return BEGINNING if newest <= BEGINNING else _last_end(job, newest)


def _timed(tally: Tally | None) -> int:
    return 0 if tally is None else tally.rows + tally.late + tally.ahead


def time_limit(origin: Origin, at: int, history: list[Facts], now: int) -> int:
    """The largest event time that is believed."""
    came = [facts.origins[at] for facts in history if _timed(facts.origins.get(at))]
    if len(came) >= 2 and all(t.ahead and not t.rows and not t.late for t in came[-2:]):
        return END
    took = [facts for facts in history if at in facts.origins and facts.origins[at].rows]
    newest = max((facts.origins[at].latest for facts in took), default=BEGINNING)
    if newest - now > origin.max_ahead:
        return newest + now - took[-1].time + origin.max_ahead
    return now + origin.max_ahead


def _admit(
    job: Job,
    history: list[Facts],
    records: list[Any],
    now: int,
    closed: int,
    held: tuple[Value, ...],
) -> tuple[list[Value], dict[str, list[Any]], dict[int, Tally]]:
    """The values that windows take, those that go to sides, and what is counted."""
    taken: list[Value] = []
    sides: dict[str, list[Any]] = {"late": [], "ahead": [], "untimed": []}
    tallies: dict[int, Tally] = {}
    limits = {at: time_limit(origin, at, history, now) for at, origin in job.origins.items()}
    is_late = _lateness(job, records, limits, closed, held)
    for at, (source, found, value, time, given) in enumerate(records):
        if source not in job.origins:
            continue
        key = job.key(found)
        if time is None:
            side = "untimed"
        elif is_late(at, time):
            side = "late"
        else:
            side = "ahead" if time > limits[source] else ""
        tally = tallies.get(source, Tally(source))
        if side:
            sides[side].append((key, value, given))
            tallies[source] = tally + Tally(source, **{side: 1})
        else:
            assert time is not None
            taken.append(Value(key, value, time, source, closed))
            tallies[source] = tally + Tally(source, rows=1, latest=time)
    return taken, sides, tallies


def _lateness(
    job: Job,
    records: list[Any],
    limits: Mapping[int, int],
    closed: int,
    held: tuple[Value, ...],
) -> Callable[[int, int], bool]:
    """Whether a record, by its place and time, is late; in sessions, with all that it joins."""
    [first, *_] = job.windows
    if isinstance(first, KeyedWindow):
        keyed = first
        return lambda _, time: keyed.is_late(time, closed)
    if not isinstance(first, Session):
        return lambda _, time: _last_end(job, time) <= closed
    here = {
        at: Value(job.key(key), at, time)
        for at, (source, key, _, time, _) in enumerate(records)
        if time is not None and time <= limits.get(source, BEGINNING)
    }
    over = {
        value.value
        for _, members in _sessions(
            first, [*(Value(v.key, -1, v.time) for v in held), *here.values()]
        )
        for value in members
        if members[-1].time + first.gap <= closed
    }
    return lambda at, _: at in over


def _last_end(job: Job, time: int) -> int:
    """When the last of the windows of a time ends."""
    if job.keyed is not None:
        return job.keyed.last_end(time)
    return max(
        time + window.gap
        if isinstance(window, Session)
        else time // window.slide * window.slide + window.size
        for window in job.windows
    )


# -- windows ---------------------------------------------------------------------------------


def _close(
    job: Job, values: list[Value], closed: int, watermark: int
) -> tuple[list[Any], list[Value], tuple[Value, ...]]:
    """What windows give now, the same for those who follow, and the values that stay."""
    [first, *_] = job.windows
    if isinstance(first, Session):
        return _close_sessions(job, first, values, watermark)
    rows: list[Any] = []
    given: list[Value] = []
    for window in job.windows:
        for (start, key), members in _members(window, values, closed, watermark).items():
            shown, value = _result(job, window, key, start, members, "on_time")
            rows.append(shown)
            given.append(value)
    kept = [v for v in values if _last_end(job, v.time // job.pane * job.pane) > watermark]
    return rows, given, tuple(kept)


def _members(
    window: Sliding, values: Iterable[Value], after: int, upto: int
) -> dict[tuple[int, str], list[Any]]:
    """The values of the windows that end within a span of time, by start and key."""
    found: dict[tuple[int, str], list[Any]] = {}
    for value in values:
        start = value.time // window.slide * window.slide
        while start + window.size > value.time:
            if after < start + window.size <= upto:
                found.setdefault((start, value.key), []).append(value.value)
            start -= window.slide
    return found


def _result(
    job: Job, window: Sliding, key: str, start: int, members: list[Any], timing: str
) -> tuple[Any, Value]:
    """What a window gives, as readers see it, and as those who follow take it."""
    result = job.show(members)
    shown = result.values() if isinstance(result, dict) else ()
    seconds = window.size // 1_000_000
    value = Value(key[0], (seconds, *shown), start + window.size - 1)
    return row(key, result, instant(start), instant(start + window.size), timing), value


def _close_sessions(
    job: Job, window: Session, values: list[Value], watermark: int
) -> tuple[list[Any], list[Value], tuple[Value, ...]]:
    rows: list[Any] = []
    kept: list[Value] = []
    for key, members in _sessions(window, values):
        end = members[-1].time + window.gap
        if end <= watermark:
            result = job.show([v.value for v in members])
            rows.append(row(key, result, instant(members[0].time), instant(end)))
        else:
            kept.extend(members)
    return rows, [], tuple(kept)


def _sessions(window: Session, values: Iterable[Value]) -> Iterator[tuple[str, list[Value]]]:
    by_key: dict[str, list[Value]] = {}
    for value in sorted(values, key=lambda value: value.time):
        by_key.setdefault(value.key, []).append(value)
    for key, members in by_key.items():
        found = [members[0]]
        for value in members[1:]:
            if value.time - found[-1].time >= window.gap:
                yield key, found
                found = []
            found.append(value)
        yield key, found


def _state(job: Job, values: Iterable[Value]) -> dict[str, Any]:
    """What each key has in its panes, or open sessions."""
    if job.keyed is not None:
        keyed = job.keyed
        return {key: keyed.state(job.show, of_key) for key, of_key in by_key(values).items()}
    found: dict[str, dict[int, list[Any]]] = {}
    [first, *_] = job.windows
    if isinstance(first, Session):
        for key, members in _sessions(first, values):
            found.setdefault(key, {})[members[0].time] = [v.value for v in members]
    else:
        for value in values:
            panes = found.setdefault(value.key, {})
            panes.setdefault(value.time // job.pane * job.pane, []).append(value.value)
    return {
        key: {instant(start): plain_value(job.show(members)) for start, members in panes.items()}
        for key, panes in found.items()
    }
