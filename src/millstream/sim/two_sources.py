"""What simulated workloads about event time read: two sources, out of order.

Times come late, too far ahead, or not at all; a source falls silent now and then, or jumps ahead
of the clock for good.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.streams import Stream
from millstream.flow.workflow import Workflow
from millstream.sim.event_time import Origin
from millstream.sim.workload import SECOND, Pair, Workload, some_key
from millstream.times import instant, since_epoch

LEFT, RIGHT = "left", "right"
ORIGINS = {
    LEFT: Origin(2 * SECOND, 4 * SECOND, 20 * SECOND),
    RIGHT: Origin(3 * SECOND, 8 * SECOND, 20 * SECOND),
}


class TwoSources(Workload):
    """A workload that reads them; all its streams have a sink."""

    def __init__(self) -> None:
        workflow = Workflow("simulated")
        sources = {
            name: workflow.source(
                name,
                Source(),
                lateness=timedelta(microseconds=origin.lateness),
                idle_after=timedelta(microseconds=origin.idle),
                max_ahead=timedelta(microseconds=origin.max_ahead),
            )
            for name, origin in ORIGINS.items()
        }
        streams = self._streams(sources[LEFT], sources[RIGHT])
        for name, stream in streams.items():
            stream.sink(f"{name}-sink", Sink())
        super().__init__(workflow)
        given = {sink.name: self.plan.inputs[at][0] for at, sink in self.plan.sinks}
        self.at = {name: given[f"{name}-sink"] for name in streams}
        self.sources = {
            name: next(
                at for at, v in enumerate(self.plan.vertices) if getattr(v, "name", "") == name
            )
            for name in ORIGINS
        }

    @abstractmethod
    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        """What is made of both, by name."""

    @property
    def origins(self) -> dict[int, Origin]:
        """How event time advances in both."""
        return {self.sources[name]: origin for name, origin in ORIGINS.items()}

    def read(self, record: Pair) -> tuple[int, str, int, int | None, Any]:
        """What the answer reads in a record."""
        key, (source, value, time) = record
        micros = None if time is None else since_epoch(time)
        return self.sources[source], key, value, micros, time

    def epochs(self, rng: random.Random, tasks: int) -> Iterator[tuple[int, list[list[Pair]]]]:
        clock = events = 0
        while True:
            silent = rng.choice((None, None, LEFT, RIGHT))
            made = [
                [_record(rng, events, silent) for _ in range(rng.randrange(8))]
                for _ in range(tasks)
            ]
            yield clock, [[] for _ in made] if rng.random() < 0.2 else made
            clock += rng.choice((1, 2, 3, 3, 12)) * SECOND
            events += rng.choice((1, 2, 3, 5)) * SECOND
            if rng.random() < 0.08:
                events += 60 * SECOND  # beyond the clock, perhaps for good

    def stream(self, rng: random.Random, count: int) -> list[Pair]:
        found: list[Pair] = []
        events, silent = 0, None
        for _ in range(count):
            if rng.random() < 0.1:
                silent = rng.choice((None, LEFT, RIGHT))
            if rng.random() < 0.02:
                events += 60 * SECOND
            found.append(_record(rng, events, silent))
            events += SECOND // 2
        return found

    def by_source(self, records: list[Pair]) -> Iterable[tuple[int, list[Any]]]:
        for name, at in self.sources.items():
            yield at, [record for record in records if record[1][0] == name]


def timed(record: Pair) -> Iterator[tuple[str, int, datetime | None]]:
    """Extract the values of a source from a record."""
    key, (_, value, time) = record
    yield key, value, time


def timed_by_letter(record: Pair) -> Iterator[tuple[str, int, datetime | None]]:
    """The same for its letter, of which there are few: values of a key meet, and follow closely."""
    key, (_, value, time) = record
    yield key[0], value, time


def letter(key: str) -> str:
    """The letter of a key."""
    return key[0]


def _record(rng: random.Random, events: int, silent: str | None) -> Pair:
    source = RIGHT if silent == LEFT else LEFT
    if silent is None:
        source = rng.choice((LEFT, RIGHT))
    time = events + rng.randrange(-4 * SECOND, 3 * SECOND)
    chance = rng.random()
    if chance < 0.15:  # on a bound of windows
        time = time // SECOND * SECOND
    elif chance < 0.25:
        time -= rng.randrange(10 * SECOND)
    elif chance < 0.3:
        time += 40 * SECOND
    stamp = None if rng.random() < 0.05 else instant(time)
    return some_key(rng), (source, rng.randrange(100), stamp)
