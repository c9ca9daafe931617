"""What simulated runs compute, and the reference answer.

Two jobs, one after the other. The first stores whatever would reveal a fault: histories in the
order of arrival, mutated in place, with entries and keys that are removed and added again. The
second adds up the results of the first. ``workloads.py`` knows the others.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from millstream.flow.plan import Plan, plan
from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.time_origins import JobTiming, timings_of
from millstream.flow.vertices import JobVertex
from millstream.flow.workflow import Workflow
from millstream.times import BEGINNING
from millstream.work.job_clock import Tally

FORGET, UNNOTE = "forget", "unnote"
SECOND = 1_000_000
Pair = tuple[str, Any]
Outputs = dict[int, list[Any]]
"""What readers see of an epoch, by the vertex that it comes from."""
Published = Sequence[Outputs | None]
"""What readers see of each epoch; None where no sink has read it."""
FinalState = Callable[[int], Mapping[str, Any]]
"""The state of a job after the last epoch."""

_KEYS = [f"{letter}{number}" for letter in "abc" for number in range(6)]


@dataclass(frozen=True)
class Moment:
    """What an epoch depends on besides its input: the clock, its driver, and requests of users."""

    now: int = 0
    incarnation: int = 1
    asked: int = BEGINNING


class Answer(Protocol):
    """The reference answer, one epoch after the other."""

    @property
    def outputs(self) -> list[Outputs]:
        """The outputs of each epoch."""

    @property
    def counted(self) -> list[dict[int, tuple[Tally, ...]]]:
        """What each epoch counts of windowed jobs."""

    def add(self, tasks: list[list[Pair]], moment: Moment = ...) -> None:
        """Compute one more epoch, from the records of its map tasks."""

    def upto(self, epoch: int) -> Answer:
        """The answer as of an epoch, to resume from it."""

    def state(self, epoch: int, job: int) -> Mapping[str, Any]:
        """The state of a job after an epoch; before the first there is none."""

    def touched(self, epoch: int, job: int) -> Mapping[str, int]:
        """When each key of a job with a time-to-live was last touched, by an epoch."""


class Workload(ABC):
    """A workflow with its input; its answer may leave a choice."""

    leaves_choice = False

    def __init__(self, workflow: Workflow) -> None:
        self.plan: Plan = plan(workflow)
        self.jobs: dict[int, JobVertex] = dict(self.plan.jobs)
        self.names = {job.name: at for at, job in self.jobs.items()}
        self.sinks = [self.plan.inputs[at][0] for at, _ in self.plan.sinks]

    @cached_property
    def timings(self) -> tuple[JobTiming, ...]:
        """What the watermarks of its windowed jobs depend on."""
        return timings_of(self.plan)

    @abstractmethod
    def answer(self, slots: int) -> Answer:
        """The reference answer before the first epoch."""

    @abstractmethod
    def epochs(self, rng: random.Random, tasks: int) -> Iterator[tuple[int, list[list[Pair]]]]:
        """The time of each epoch, and its input by map task."""

    @abstractmethod
    def stream(self, rng: random.Random, count: int) -> list[Pair]:
        """A source that can be read from any position, again and again."""

    @abstractmethod
    def by_source(self, records: list[Pair]) -> Iterable[tuple[int, list[Any]]]:
        """What a map task reads of each source."""

    def comparable(self, state: Any) -> Any:
        """The state of a key in the form of the reference answer."""
        return state

    def disagreement(self, published: Published, state: FinalState) -> str | None:
        """A contradiction among published epochs, or between them and the state; None if none.

        It can be detected even where the answer leaves a choice, or the input is not known.
        """
        return None


class OneSource(Workload):
    """A workload that reads one source, second by second."""

    def epochs(self, rng: random.Random, tasks: int) -> Iterator[tuple[int, list[list[Pair]]]]:
        time = 0
        while True:
            yield time, records(rng, tasks)
            time += SECOND

    def stream(self, rng: random.Random, count: int) -> list[Pair]:
        return [_record(rng) for _ in range(count)]

    def by_source(self, records: list[Pair]) -> Iterable[tuple[int, list[Any]]]:
        return [(0, records)]


class _Plain(OneSource):
    """The two jobs without windows."""

    def __init__(self) -> None:
        workflow = Workflow("simulated")
        first = workflow.source("records", Source()).map_reduce("remember", reduce=remember)
        second = first.map_reduce("add-up", map=by_letter, reduce=add_up)
        second.sink("sums", Sink())
        first.sink("histories", Sink())
        super().__init__(workflow)

    def answer(self, slots: int) -> Answer:
        return Reference()

    def disagreement(self, published: Published, state: FinalState) -> str | None:
        last: dict[str, Any] = {}
        sums: dict[str, dict[str, Any]] = {}
        for epoch, outputs in enumerate(published):
            if outputs is None:
                return None  # all that follows depends on it
            last.update(outputs[1])
            behind = [pair for output in outputs[1] for pair in by_letter(output)]
            expected = in_order(reduced(add_up, behind, sums))
            if outputs[2] != expected:
                return f"epoch {epoch} shows {outputs[2]}, not {expected}"
        found = {k: (len(e.get("history", ())), e.get("note", -1)) for k, e in state(1).items()}
        for key, value in last.items():
            if found.get(key, (0, -1)) != value:
                return f"{key} was published as {value}, but its state is {found.get(key)}"
        return None if state(2) == sums else f"job 2 ends with {state(2)}, not {sums}"


def remember(key: str, values: list[Any], state: Any) -> Iterator[Pair]:
    """Store a key's history, and a note of the last value."""
    for value in values:
        if value == FORGET:
            state.clear()
        elif value == UNNOTE:
            state.pop("note", None)
        else:
            if "history" in state:
                state["history"].append(value)
            else:
                state["history"] = [value]
            state["note"] = value
    yield key, (len(state.get("history", ())), state.get("note", -1))


def add_up(letter: str, values: list[Any], state: Any) -> Iterator[Pair]:
    """Add up the lengths of histories, and count them."""
    state["sum"] = state.get("sum", 0) + sum(values)
    state["count"] = state.get("count", 0) + len(values)
    yield letter, (state["sum"], state["count"])


def by_letter(record: Pair) -> Iterator[Pair]:
    """Send the length of a key's history to its letter."""
    key, (length, _) = record
    yield key[0], length


PLAIN: Workload = _Plain()

States = dict[int, dict[str, Any]]
"""The states of jobs; with a time-to-live also, at minus its number, when keys were touched."""
Step = Callable[[States, list[Pair], int], Outputs]
"""Advances the states of jobs by an epoch, from its records and time; returns the outputs."""


def _plain_step(states: States, given: list[Pair], now: int) -> Outputs:
    first = reduced(remember, given, states[1])
    second = reduced(add_up, [pair for out in first for pair in by_letter(out)], states[2])
    return {1: in_order(first), 2: in_order(second)}


@dataclass
class Reference:
    """The reference answer in plain dictionaries, one epoch after the other."""

    step: Step = _plain_step
    after: list[States] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    @property
    def counted(self) -> list[dict[int, tuple[Tally, ...]]]:
        return [{} for _ in self.outputs]

    def add(self, tasks: list[list[Pair]], moment: Moment = Moment()) -> None:  # noqa: B008
        states: States = defaultdict(dict, deepcopy(self.after[-1]) if self.after else {})
        self.times.append(max([moment.now, *self.times[-1:]]))
        given = [record for task in tasks for record in task]
        self.outputs.append(self.step(states, given, self.times[-1]))
        self.after.append(states)

    def upto(self, epoch: int) -> Reference:
        upto = slice(epoch + 1)
        return Reference(self.step, self.after[upto], self.outputs[upto], self.times[upto])

    def state(self, epoch: int, job: int) -> Mapping[str, Any]:
        return self.after[epoch][job] if epoch >= 0 else {}

    def touched(self, epoch: int, job: int) -> Mapping[str, int]:
        return self.state(epoch, -job)


def reduced(function: Any, pairs: list[Pair], states: dict[str, dict[str, Any]]) -> list[Pair]:
    """Run a reduce function over plain dictionaries."""
    groups: dict[str, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    outputs: list[Pair] = []
    for key, values in groups.items():
        state = states.setdefault(key, {})
        outputs.extend(function(key, values, state))
        if not state:
            del states[key]
    return outputs


def in_order(records: Iterable[Any]) -> list[Any]:
    """Records in an order of their own, with tuples for all that is a sequence."""
    return sorted(map(spelled, records), key=repr)


def spelled(value: Any) -> Any:
    """A record in plain values: Arrow gives lists for tuples, and rows have a class."""
    return tuple(map(spelled, value)) if isinstance(value, list | tuple) else value


def records(rng: random.Random, tasks: int) -> list[list[Pair]]:
    """The input of one epoch, by map task; sometimes there is none."""
    if rng.random() < 0.1:
        return [[] for _ in range(tasks)]
    return [[_record(rng) for _ in range(rng.randrange(8))] for _ in range(tasks)]


def split(records: list[Pair], tasks: int) -> list[list[Pair]]:
    """What each map task of an epoch reads."""
    size = -(-len(records) // tasks)
    return [records[task * size : (task + 1) * size] for task in range(tasks)]


def some_key(rng: random.Random) -> str:
    """A key; some are more frequent."""
    return _KEYS[int(len(_KEYS) * rng.random() ** 2)]


def _record(rng: random.Random) -> Pair:
    key = some_key(rng)
    chance = rng.random()
    if chance < 0.08:
        return key, FORGET
    return key, UNNOTE if chance < 0.2 else rng.randrange(100)
