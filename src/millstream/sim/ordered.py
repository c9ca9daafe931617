"""A simulated workload whose second job depends on the order of what the first gives.

The order in which results reach a downstream job is not defined, except that those of one key keep
theirs: it follows from how partitions are cut into units, and so from who owns what. But it is one
order: what an epoch has published is in every copy, whichever nodes died meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.workflow import Workflow
from millstream.sim.workload import (
    Answer,
    FinalState,
    OneSource,
    Outputs,
    Pair,
    Published,
    Reference,
    States,
    Workload,
    in_order,
    reduced,
)

FIRST, SECOND_JOB = 1, 2


def number(key: str, values: list[Any], state: Any) -> Iterator[Pair]:
    """Number the values of a key, and give each of them."""
    for _ in values:
        state["count"] = state.get("count", 0) + 1
        yield key, state["count"]


def by_letter(record: Pair) -> Iterator[Pair]:
    """Send a numbered value to its letter, as text."""
    key, count = record
    yield key[0], f"{key}:{count}"


def line_up(letter: str, values: list[str], state: Any) -> Iterator[Pair]:
    """Store values in the order of arrival, and return all of them."""
    state.setdefault("lines", []).append(values)
    yield letter, state["lines"]


class Interleaved:
    """Equal to all sequences of the same texts in which those of a key keep their order."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_key = _by_key(texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | tuple) and _by_key(other) == self._by_key

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self._by_key}"


def _by_key(texts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(text.partition(":")[0], []).append(text)
    return found


class _Ordered(OneSource):
    leaves_choice = True

    def __init__(self) -> None:
        workflow = Workflow("simulated")
        first = workflow.source("records", Source()).map_reduce("number", reduce=number)
        second = first.map_reduce("line-up", map=by_letter, reduce=line_up)
        second.sink("lines", Sink())
        first.sink("numbers", Sink())
        super().__init__(workflow)

    def answer(self, slots: int) -> Answer:
        return Reference(_step)

    def disagreement(self, published: Published, state: FinalState) -> str | None:
        """An epoch adds all results of the first job in it, and nothing else changes."""
        lines: dict[str, tuple[Any, ...]] = {}
        for epoch, outputs in enumerate(published):
            if outputs is None:
                continue
            new = dict(outputs[SECOND_JOB])
            for letter, found in new.items():
                before = lines.get(letter, ())
                if found[: len(before)] != before:
                    return f"epoch {epoch} shows {found} after {before}"
            came = Counter(pair for record in outputs[FIRST] for pair in by_letter(record))
            if came != Counter((k, text) for k, found in new.items() for text in found[-1]):
                return f"epoch {epoch} shows {outputs[SECOND_JOB]} of {outputs[FIRST]}"
            lines.update(new)
        for letter, expected in lines.items():
            found = tuple(map(tuple, state(SECOND_JOB)[letter]["lines"]))
            if found[: len(expected)] != expected:
                return f"{letter} was published as {expected}, but its state is {found}"
        return None


def _step(states: States, given: list[Pair], now: int) -> Outputs:
    first = reduced(number, given, states[FIRST])
    behind = [pair for record in first for pair in by_letter(record)]
    reduced(line_up, behind, states[SECOND_JOB])
    second = []
    for letter in dict.fromkeys(letter for letter, _ in behind):
        lines = states[SECOND_JOB][letter]["lines"]
        lines[-1] = Interleaved(lines[-1])
        second.append((letter, tuple(lines)))
    return {FIRST: in_order(first), SECOND_JOB: sorted(second, key=lambda pair: pair[0])}


ORDERED: Workload = _Ordered()
