"""The protocol of policies, the limits they keep to, and policies written by users.

A policy is pure: the same history, ring and limits give the same actions. It only suggests; the
coordinator may refuse. Pauses between decisions are in :mod:`millstream.elastic.cooldown`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from millstream.elastic.action_checks import problem_with
from millstream.elastic.actions import Action
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.errors import MillstreamError, Place
from millstream.flow.function_shipping import is_users_file
from millstream.flow.functions import caller, check_arguments, check_callable, name_of, place_of
from millstream.ring.ring import Ring
from millstream.state.values import value_text

PolicyFunction: TypeAlias = Callable[[Sequence[Load], Ring, Limits], Sequence[Action]]


class PolicyError(MillstreamError):
    """A policy written by a user raised an exception, or returned actions that are not possible."""

    def __init__(self, function: str, place: Place | None, what: str, fix: str) -> None:
        super().__init__(function, place, what, fix)
        self.function, self.place, self.what, self.fix = function, place, what, fix

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}the policy, {self.function}, {self.what}; {self.fix}"


class Policy(Protocol):
    """Decides from load what to change."""

    @property
    def name(self) -> str:
        """The name for events and messages."""
        ...

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        """Return what to change now; nothing if the history is empty.

        The history is oldest first, and begins after the last change. Times come from it.
        """
        ...


@dataclass(frozen=True)
class ManualPolicy:
    """Decides nothing: nodes and slots change only by hand."""

    name: ClassVar[str] = "manual"

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        return []


@dataclass(frozen=True)
class FunctionPolicy:
    """A function of the user's as a policy; what it returns is checked."""

    function: PolicyFunction

    @property
    def name(self) -> str:
        return name_of(self.function)

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        if not history:
            return []
        try:
            actions = self.function(history, ring, limits)
        except Exception as problem:
            error = "".join(traceback.format_exception_only(problem)).strip()
            place = _raised_at(problem) or place_of(self.function)
            raise PolicyError(self.name, place, f"raised {error}", "correct it") from problem
        if not isinstance(actions, list | tuple):
            what = f"returned {value_text(actions)}"
            raise self._error(what, "return a list of actions, an empty one to change nothing")
        problem_found = problem_with(actions, ring, limits)
        if problem_found is not None:
            raise self._error(
                f"returned an action that is not possible: {problem_found.what}", problem_found.fix
            )
        return list(actions)

    def _error(self, what: str, fix: str) -> PolicyError:
        return PolicyError(self.name, place_of(self.function), what, fix)


def policy(function: PolicyFunction) -> FunctionPolicy:
    """Make a policy of a function of history, ring and limits that returns actions.

    The history is a sequence of loads, oldest first. The function is called when an epoch has
    committed, and must not read a clock or use randomness.

    >>> @ms.policy
    ... def one_more_when_busy(history, ring, limits):
    ...     busy = [node for node, load in history[-1].nodes.items() if load.cpu > 0.9]
    ...     if not busy or len(ring.nodes) >= limits.max_nodes:
    ...         return []
    ...     return [ms.AddNodes(count=1, relieve=(busy[0],), reason=f"{busy[0]} is busy")]
    """
    check_callable(function, "ms.policy", caller())
    check_arguments(function, 3, "ms.policy function", "(history, ring, limits)")
    return FunctionPolicy(function)


def _raised_at(problem: BaseException) -> Place | None:
    frames = traceback.extract_tb(problem.__traceback__)
    places = [Place(frame.filename, frame.lineno or 0) for frame in frames]
    return next((place for place in reversed(places) if is_users_file(place.file)), None)
