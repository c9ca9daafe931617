"""A simulated workload whose keys expire: jobs of all kinds of state, each with a time-to-live.

When each key was last touched is a part of the state: a copy that does not know it would expire
keys too early, too late, or never. So it is compared as well, and a key that has expired must have
left nothing behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from millstream.flow.reducers import combinable
from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.vertices import JobVertex
from millstream.flow.workflow import Workflow
from millstream.sim.workload import (
    SECOND,
    Answer,
    OneSource,
    Outputs,
    Pair,
    Reference,
    States,
    Workload,
    in_order,
    records,
    remember,
)
from millstream.state.aggregates.constructors import count, sum
from millstream.state.aggregates.sets import AggregateSet
from millstream.state.columns import ColumnState
from millstream.state.keyed import KeyedState

_TTL = {"remember": 3, "totals": 2, "lists": 5}
_STEPS = (0, 1, 1, 2, 4)
_SMALL = 40


def length(record: Pair) -> Iterator[Pair]:
    """A key's history length, for the job behind."""
    key, (found, _) = record
    yield key, found


def small(record: Pair) -> Iterator[Pair]:
    """The numbers among the values."""
    key, value = record
    if isinstance(value, int) and value < _SMALL:
        yield key, value


def add_to(values: list[int], value: int) -> list[int]:
    """Add a value in place."""
    values.append(value)
    return values


def merged(left: list[int], right: list[int]) -> list[int]:
    """Merge in place."""
    left.extend(right)
    return left


def sorted_tuple(values: list[int]) -> tuple[int, ...]:
    """What a list shows."""
    return tuple(sorted(values))


class _Expiring(OneSource):
    def __init__(self) -> None:
        def ttl(name: str) -> timedelta:
            return timedelta(seconds=_TTL[name])

        workflow = Workflow("simulated")
        source = workflow.source("records", Source())
        first = source.map_reduce("remember", reduce=remember, ttl=ttl("remember"))
        totals = first.map_reduce(
            "totals",
            map=length,
            reduce=AggregateSet((("total", sum()), ("n", count()))),
            ttl=ttl("totals"),
        )
        lists = source.map_reduce(
            "lists",
            map=small,
            reduce=combinable(zero=list, add=add_to, merge=merged, result=sorted_tuple),
            ttl=ttl("lists"),
        )
        for name, stream in {"remember": first, "totals": totals, "lists": lists}.items():
            stream.sink(f"{name}-sink", Sink())
        super().__init__(workflow)

    def epochs(self, rng: random.Random, tasks: int) -> Iterator[tuple[int, list[list[Pair]]]]:
        time = 0
        while True:
            yield time, records(rng, tasks)
            time += rng.choice(_STEPS) * SECOND

    def answer(self, slots: int) -> Answer:
        return Reference(self._step)

    def _step(self, states: States, given: list[Pair], now: int) -> Outputs:
        at = self.names
        first = _expiring(states, at["remember"], _TTL["remember"], given, now, remember)
        lengths = [pair for record in first for pair in length(record)]
        totals = _expiring(states, at["totals"], _TTL["totals"], lengths, now, _total)
        chosen = [pair for record in given for pair in small(record)]
        lists = _expiring(states, at["lists"], _TTL["lists"], chosen, now, _list)
        return {
            at["remember"]: in_order(first),
            at["totals"]: in_order(totals),
            at["lists"]: in_order(lists),
        }

    def comparable(self, state: Any) -> Any:
        # A combinable shows its result, and the store what that is made of.
        if isinstance(state, dict):
            state = sorted_tuple(state["accumulator"]) if "accumulator" in state else state
        return {"list": state} if isinstance(state, tuple) else state


Reduce = Callable[[str, list[Any], dict[str, Any]], Iterator[Any]]


def _expiring(
    states: States, job: int, ttl: int, given: list[Pair], now: int, function: Reduce
) -> list[Any]:
    """Run a reduce function over the keys that have not expired; gives its outputs."""
    held, touched = states[job], states[-job]
    for key in [key for key, time in touched.items() if time < now - ttl * SECOND]:
        del held[key], touched[key]
    groups: dict[str, list[Any]] = {}
    for key, value in given:
        groups.setdefault(key, []).append(value)
    outputs: list[Any] = []
    for key, values in groups.items():
        outputs.extend(function(key, values, held.setdefault(key, {})))
        touched[key] = now
        if not held[key]:
            del held[key], touched[key]
    return outputs


def _total(key: str, values: list[int], state: dict[str, Any]) -> Iterator[Any]:
    for value in values:
        state["total"] = state.get("total", 0) + value
        state["n"] = state.get("n", 0) + 1
    yield key, state["total"], state["n"]


def _list(key: str, values: list[int], state: dict[str, Any]) -> Iterator[Any]:
    state["list"] = tuple(sorted([*state.get("list", ()), *values]))
    yield key, state["list"]


EXPIRING: Workload = _Expiring()


def last_touches(job: JobVertex, state: Any) -> dict[Any, int]:
    """When each key of a job with a time-to-live was last touched, as a node knows it."""
    if job.ttl is None or job.windowing is not None:
        return {}
    if isinstance(state, ColumnState):
        return {key: int(state._touched[row]) for key, row in state._index.items()}
    assert isinstance(state, KeyedState)
    return {key: time for seen in state._seen.values() for key, time in seen.items()}
