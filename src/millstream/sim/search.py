"""The search for a seed that violates an invariant, among scenarios of one kind.

A kind is drawn like any other scenario, and then made what a certain fault needs: two nodes and
moving slots, or a driver that is replaced again and again. So a fault shows within a few seeds,
and no seed has to be known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from millstream.sim.durable_scenario import DurableScenario
from millstream.sim.scenario import Scenario, ScenarioFailedError, draw, play
from millstream.sim.slowness import Slowness

T = TypeVar("T")
_ROOMY = {"size": {"disk": None}}
Kind = Callable[[int], Scenario | DurableScenario]


@dataclass(frozen=True)
class Broken:
    """A seed whose run violated an invariant, and the error."""

    seed: int
    problem: str


def first_broken(kind: Kind, seeds: Iterable[int]) -> Broken | None:
    """The first of some seeds that violates an invariant; None if none does."""
    for seed in seeds:
        try:
            play(kind(seed))
        except ScenarioFailedError as failed:
            return Broken(seed, str(failed))
    return None


def anything(seed: int) -> Scenario | DurableScenario:
    """All that ``make sim`` runs."""
    return draw(seed)


def in_memory(workload: str = "plain", **changes: Any) -> Kind:
    """Runs without a store; ``changes`` are made to what a seed has drawn."""

    def drawn(seed: int) -> Scenario:
        scenario = replace(Scenario.of(seed), workload=workload, slowness=Slowness())
        return _changed(_changed(scenario, _ROOMY), changes)

    return drawn


def stored(workload: str = "plain", **changes: Any) -> Kind:
    """Runs with a store, whose drivers are replaced."""

    def drawn(seed: int) -> DurableScenario:
        scenario = replace(DurableScenario.of(seed), workload=workload, slowness=Slowness())
        steady = {**_ROOMY, "options": {"spark_faults": {"flaky": 0.0}}}
        return _changed(_changed(scenario, steady), changes)

    return drawn


def _changed(scenario: T, changes: Mapping[str, Any]) -> T:
    """A scenario with other fields; those of its parts are given as a dictionary."""
    found = {
        name: _changed(getattr(scenario, name), value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return replace(scenario, **found)  # type: ignore[type-var]
