"""A simulated workload whose keys have timers, by both clocks.

Values set, move and cancel timers. Timers that fire set others, also for times already reached.
Each key stores the order in which its timers fired, and how many waited: a timer that is lost,
fires twice, too early or too late, or in another order, shows. The keys of a second job expire.

The reference answer has its own timers, in plain dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from millstream.flow.streams import Stream
from millstream.sim.event_time import Facts, Origin, Read, time_limit, watermark_of
from millstream.sim.two_sources import TwoSources
from millstream.sim.workload import SECOND, Answer, Moment, Outputs, Pair, Workload, in_order
from millstream.state.timers import KeyEntries, Timer, TimerError
from millstream.times import BEGINNING, END, instant, since_epoch
from millstream.work.job_clock import Tally

_TTL = 6
_REMEMBERED = 5
_LENGTHS = (0, 1, 2, 5, 9, 30)


def act(key: str, values: list[int], state: Any) -> Iterator[Any]:
    """Do with timers what the values of a key say, in any order of these."""
    timers = state.timers
    state["came"] = state.get("came", 0) + len(values)
    for value in sorted(values):
        length = timedelta(seconds=_LENGTHS[value % len(_LENGTHS)])
        what = value % 11
        if what < 4:
            timers.set(f"p{what}", after=length)
        elif what < 6:
            timers.set("e0", at=instant(value * SECOND), time="event")
        elif what < 8:
            try:
                timers.set("e1", after=length, time="event")
            except TimerError:  # nothing to count from yet
                state["missed"] = state.get("missed", 0) + 1
        elif what == 8:
            timers.cancel(f"p{value % 4}")
            timers.cancel("e0", time="event")
        elif what == 9:
            state.clear()
        else:
            moved = timers.get("p0") or timers.get("e1", time="event")
            if moved is not None:
                timers.set("p1", at=moved - timedelta(seconds=3))
    yield key, state.get("came", 0), f"{len(timers.list())} wait"


def ring(key: str, timer: Timer, state: Any) -> Iterator[Any]:
    """Remember what fired; every other one sets further timers, some for times already reached."""
    number = state["fired"] = state.get("fired", 0) + 1
    shown = f"{timer.name} at {since_epoch(timer.at)} ({timer.time})"
    state["last"] = [*state.get("last", ()), shown][-_REMEMBERED:]
    yield key, number, shown
    if number % 2:
        past = timer.at - timedelta(seconds=number % 5)
        state.timers.set(f"again{number % 3}", at=past, time=timer.time)
    elif number % 3 == 0:
        state.timers.set("p0", after=timedelta(seconds=number % 4))
    elif number % 7 == 0:
        state.clear()


def told(record: Pair) -> Iterator[tuple[str, int, datetime | None]]:
    """Extract the values of a source from a record."""
    key, (_, value, time) = record
    yield key, value, time


class _TimedKeys(TwoSources):
    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        both = left.union(right)
        ttl = timedelta(seconds=_TTL)
        return {
            "timed": both.map_reduce("timed", map=told, reduce=act, on_timer=ring),
            "fading": both.map_reduce("fading", map=told, reduce=act, on_timer=ring, ttl=ttl),
        }

    def answer(self, slots: int) -> Answer:
        jobs = {self.at["timed"]: None, self.at["fading"]: _TTL * SECOND}
        return TimerAnswer(jobs, self.origins, self.read)

    def comparable(self, state: Any) -> Any:
        assert isinstance(state, KeyEntries)
        timers = [(since_epoch(timer.at), timer.name, timer.time) for timer in state.timers]
        return {"entries": dict(state), "timers": timers}


@dataclass
class _Now:
    """The time of an epoch: that of the clock, the watermark, and what new timers can reach."""

    clock: int
    watermark: int
    closed: int

    def of(self, time: str) -> int:
        return self.clock if time == "processing" else self.watermark

    def of_new(self, time: str) -> int:
        at_the_end = time == "event" and self.watermark == END
        return self.closed if at_the_end else self.of(time)


class _PlainTimers:
    """The timers of a key in a dictionary, by clock and name."""

    def __init__(self, waiting: dict[tuple[str, str], int], now: _Now, newest: int | None) -> None:
        self.waiting, self._now, self._newest = waiting, now, newest

    def set(
        self,
        name: str,
        *,
        at: datetime | None = None,
        after: timedelta | None = None,
        time: str = "processing",
    ) -> None:
        if at is not None:
            moment = since_epoch(at)
        else:
            assert after is not None
            begin = self._now.of_new(time)
            if time == "event":
                begin = max(begin, BEGINNING if self._newest is None else self._newest)
            if begin <= BEGINNING:
                raise TimerError("no event time", "none")
            moment = begin + round(after.total_seconds() * SECOND)
        self.waiting[time, name] = moment

    def cancel(self, name: str, *, time: str = "processing") -> None:
        self.waiting.pop((time, name), None)

    def get(self, name: str, *, time: str = "processing") -> datetime | None:
        at = self.waiting.get((time, name))
        return None if at is None else instant(at)

    def list(self) -> list[Any]:
        return sorted((at, name, time) for (time, name), at in self.waiting.items())


class _PlainState(dict[str, Any]):
    timers: _PlainTimers


@dataclass
class _Key:
    entries: dict[str, Any] = field(default_factory=dict)
    waiting: dict[tuple[str, str], int] = field(default_factory=dict)
    touched: int = 0

    def __bool__(self) -> bool:
        return bool(self.entries or self.waiting)

    def run(self, function: Any, key: str, given: Any, now: _Now, newest: int | None) -> list[Any]:
        """Call a function of the user, and return its outputs."""
        state = _PlainState(self.entries)
        state.timers = _PlainTimers(self.waiting, now, newest)
        outputs = list(function(key, given, state))
        self.entries, self.touched = dict(state), now.clock
        return outputs

    def due(self, now: _Now) -> dict[tuple[str, str], int]:
        """The timers that fire in an epoch, when its values were reduced."""
        return {known: at for known, at in self.waiting.items() if at <= now.of(known[0])}

    def still_due(
        self, due: Mapping[tuple[str, str], int], now: _Now
    ) -> dict[tuple[str, str], int]:
        """What is left of these when one has fired, and what it has set."""
        return {
            known: at
            for known, at in self.waiting.items()
            if due.get(known) == at or at <= now.of_new(known[0])
        }


_Keys = dict[str, _Key]


@dataclass(frozen=True)
class _Epoch:
    moment: Moment
    facts: Facts
    keys: Mapping[int, _Keys]
    outputs: Outputs


class TimerAnswer:
    """What jobs with timers must give; each has a time-to-live, or none."""

    def __init__(
        self,
        jobs: Mapping[int, int | None],
        origins: Mapping[int, Origin],
        read: Read,
        epochs: Iterable[_Epoch] = (),
    ) -> None:
        self._jobs, self._origins, self._read = jobs, origins, read
        self._epochs = list(epochs)

    @property
    def outputs(self) -> list[Outputs]:
        return [epoch.outputs for epoch in self._epochs]

    @property
    def counted(self) -> list[dict[int, tuple[Tally, ...]]]:
        return [
            {
                job: tuple(epoch.facts.origins[at] for at in sorted(epoch.facts.origins))
                for job in self._jobs
            }
            for epoch in self._epochs
        ]

    def upto(self, epoch: int) -> TimerAnswer:
        return TimerAnswer(self._jobs, self._origins, self._read, self._epochs[: epoch + 1])

    def state(self, epoch: int, job: int) -> Mapping[str, Any]:
        if epoch < 0:
            return {}
        return {
            key: {
                "entries": held.entries,
                "timers": sorted((at, name, time) for (time, name), at in held.waiting.items()),
            }
            for key, held in self._epochs[epoch].keys[job].items()
        }

    def touched(self, epoch: int, job: int) -> Mapping[str, int]:
        if epoch < 0 or self._jobs[job] is None:
            return {}
        return {key: held.touched for key, held in self._epochs[epoch].keys[job].items()}

    def add(self, tasks: list[list[Pair]], moment: Moment = Moment()) -> None:  # noqa: B008
        before = self._epochs[-1] if self._epochs else None
        now = moment.now if before is None else max(moment.now, before.moment.now)
        moment = Moment(now, moment.incarnation, moment.asked)
        history = [epoch.facts for epoch in self._epochs]
        is_first = before is None or before.moment.incarnation != moment.incarnation
        closed = history[-1].after if history else BEGINNING
        mark = watermark_of(self._origins, history, now, is_first)
        watermark = max(closed, mark, moment.asked)
        limits = {at: time_limit(origin, at, history, now) for at, origin in self._origins.items()}
        tallies: dict[int, Tally] = {}
        values: dict[str, list[int]] = {}
        newest: dict[str, int] = {}
        for source, key, value, time, _ in map(self._read, (r for task in tasks for r in task)):
            values.setdefault(key, []).append(value)
            tally = tallies.get(source, Tally(source))
            if time is None:
                tally += Tally(source, untimed=1)
            elif time > limits[source]:
                tally += Tally(source, ahead=1)
            else:
                tally += Tally(source, rows=1, latest=time)
                newest[key] = max(newest.get(key, time), time)
            tallies[source] = tally
        facts = Facts(now, is_first, closed, watermark, tallies, watermark)
        if watermark == END:
            rest = watermark_of(self._origins, [*history, facts], now, is_first=True)
            facts = replace(facts, after=max(closed, rest))
        keys: dict[int, _Keys] = {}
        outputs: Outputs = {}
        for job, ttl in self._jobs.items():
            keys[job] = {} if before is None else deepcopy(before.keys[job])
            found = _run(keys[job], ttl, values, newest, _Now(now, watermark, closed))
            outputs[job] = in_order(found)
        self._epochs.append(_Epoch(moment, facts, keys, outputs))


def _run(
    keys: _Keys,
    ttl: int | None,
    values: Mapping[str, list[int]],
    newest: Mapping[str, int],
    now: _Now,
) -> list[Any]:
    """Reduce the values of an epoch, and fire the timers that are due, over plain keys."""
    if ttl is not None:
        for key in [k for k, held in keys.items() if held.touched < now.clock - ttl]:
            if not keys[key].due(now):
                del keys[key]
    outputs: list[Any] = []
    for key, given in values.items():
        held = keys.setdefault(key, _Key())
        outputs += held.run(act, key, given, now, newest.get(key))
    # Timers of one key alone act on each other.
    for key, held in keys.items():
        due = held.due(now)
        while due:
            at, name, time = min((at, name, time) for (time, name), at in due.items())
            del held.waiting[time, name]
            outputs += held.run(ring, key, Timer(name, instant(at), time), now, None)  # type: ignore[arg-type]
            due = held.still_due(due, now)
    for key in [key for key, held in keys.items() if not held]:
        del keys[key]
    return outputs


TIMERS: Workload = _TimedKeys()
