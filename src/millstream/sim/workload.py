"""What simulated runs compute, and the plain answer to it.

Two jobs, one after the other. The first keeps whatever would show a fault: histories in the order
of arrival, mutated in place, with entries and keys that are removed and come back. The second adds
up what the first gives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import Place
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex

FORGET, UNNOTE = "forget", "unnote"
Pair = tuple[str, Any]

_HERE = Place(__file__, 1)
_KEYS = [f"{letter}{number}" for letter in "abc" for number in range(6)]


def remember(key: str, values: list[Any], state: Any) -> Iterator[Pair]:
    """Keep a key's history, and a note of the last value."""
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
    """Bring a key's history length to its letter."""
    key, (length, _) = record
    yield key[0], length


JOBS = {
    1: JobVertex(_HERE, name="remember", reducer=reducer_of(remember, "remember")),
    2: JobVertex(_HERE, name="add up", map=by_letter, reducer=reducer_of(add_up, "add up")),
}

States = dict[int, dict[str, dict[str, Any]]]


@dataclass
class Reference:
    """The plain answer: dictionaries, one epoch after the other."""

    after: list[States] = field(default_factory=list)
    outputs: list[dict[int, list[Pair]]] = field(default_factory=list)

    def add(self, tasks: list[list[Pair]]) -> None:
        """Compute one more epoch, from the records of its map tasks."""
        states = deepcopy(self.after[-1]) if self.after else {1: {}, 2: {}}
        first = _reduce(remember, [record for task in tasks for record in task], states[1])
        second = _reduce(add_up, [pair for out in first for pair in by_letter(out)], states[2])
        self.after.append(states)
        self.outputs.append({1: sorted(first), 2: sorted(second)})

    def upto(self, epoch: int) -> Reference:
        """The answer as it was after an epoch, to go on from there."""
        return Reference(self.after[: epoch + 1], self.outputs[: epoch + 1])

    def state(self, epoch: int, job: int) -> dict[str, dict[str, Any]]:
        """The state of a job after an epoch; before the first there is none."""
        return self.after[epoch][job] if epoch >= 0 else {}


def _reduce(function: Any, pairs: list[Pair], states: dict[str, dict[str, Any]]) -> list[Pair]:
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


def records(rng: random.Random, tasks: int) -> list[list[Pair]]:
    """The input of one epoch, by map task; sometimes there is none."""
    if rng.random() < 0.1:
        return [[] for _ in range(tasks)]
    return [[_record(rng) for _ in range(rng.randrange(8))] for _ in range(tasks)]


def stream(rng: random.Random, count: int) -> list[Pair]:
    """A source that can be read from any position, again and again."""
    return [_record(rng) for _ in range(count)]


def split(records: list[Pair], tasks: int) -> list[list[Pair]]:
    """What each map task of an epoch reads."""
    size = -(-len(records) // tasks)
    return [records[task * size : (task + 1) * size] for task in range(tasks)]


def _record(rng: random.Random) -> Pair:
    key = _KEYS[int(len(_KEYS) * rng.random() ** 2)]
    chance = rng.random()
    if chance < 0.08:
        return key, FORGET
    return key, UNNOTE if chance < 0.2 else rng.randrange(100)
