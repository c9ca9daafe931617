"""Cool-down: a policy decides again only when the last decision shows in the load.

A wrapper around policies, as pure as they are: it needs the past decisions. Thresholds that keep
their distance (hysteresis) are in the options of each policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from operator import attrgetter

import numpy as np

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.decisions import Decision
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.policy import Policy
from millstream.errors import ConfigError
from millstream.ring.masks import overlap
from millstream.ring.ring import NodeId, Ring

# What policies compare with thresholds.
_FIGURES = ("cpu", "queue", "tuples", "reduce_seconds")
_READERS = [attrgetter(figure) for figure in _FIGURES]


@dataclass(frozen=True, kw_only=True)
class Cooldown:
    """How long policies wait.

    After any change ``epochs`` must pass, and ``after_scaling`` if nodes were added or removed.
    Nodes are removed only if the peak load of the last ``scale_in_after`` allows it. A slot does
    not return within ``no_return`` to a node that it has left.
    """

    epochs: int = 2
    after_scaling: timedelta = timedelta(seconds=10)
    scale_in_after: timedelta = timedelta(seconds=60)
    no_return: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if type(self.epochs) is not int or self.epochs < 1:
            raise ConfigError(f"epochs must be an integer of at least 1, got {self.epochs!r}")
        for option in ("after_scaling", "scale_in_after", "no_return"):
            length = getattr(self, option)
            if not isinstance(length, timedelta) or length < timedelta(0):
                raise ConfigError(f"{option} must be a timedelta of at least 0, got {length!r}")


def decide_calmly(
    policy: Policy,
    history: Sequence[Load],
    ring: Ring,
    limits: Limits,
    past: Sequence[Decision],
    cooldown: Cooldown,
) -> list[Action]:
    """Return what the policy decides from the load since the last decision that had actions.

    ``past`` are decisions, oldest first; those that decided nothing may be left out, and so may
    those older than ``no_return``, except for the last.
    """
    last = next((decision for decision in reversed(past) if decision.actions), None)
    if not history or (last is not None and not _is_over(last, history[-1], cooldown)):
        return []
    since = [load for load in history if last is None or load.epoch > last.epoch]
    actions = policy.decide(since, ring, limits)
    if any(isinstance(action, RemoveNodes) for action in actions):
        # Nodes are removed only if there is nothing else to do.
        others: list[Action] = [action for action in actions if not isinstance(action, RemoveNodes)]
        actions = others or _removals_at_peak(policy, since, ring, limits, cooldown)
    return _without_returns(actions, past, history[-1].time, cooldown)


def _is_over(last: Decision, now: Load, cooldown: Cooldown) -> bool:
    scaled = any(isinstance(action, AddNodes | RemoveNodes) for action in last.actions)
    pause = cooldown.after_scaling.total_seconds() if scaled else 0.0
    return now.epoch - last.epoch >= cooldown.epochs and now.time - last.time >= pause


def _without_returns(
    actions: Sequence[Action], past: Sequence[Decision], now: float, cooldown: Cooldown
) -> list[Action]:
    earliest = now - cooldown.no_return.total_seconds()
    left: dict[NodeId, list[range]] = {}
    for decision in past:
        if decision.time > earliest and not decision.dry_run:
            for action in decision.actions:
                if isinstance(action, MoveSlots):
                    left.setdefault(action.source, []).extend(action.slots)
    kept = list(actions)
    # A node that may not hand slots on must not receive any for which it would make room.
    full: set[NodeId] = set()
    while returns := [action for action in kept if _returns(action, left, full)]:
        full.update(action.source for action in returns if isinstance(action, MoveSlots))
        kept = [action for action in kept if not _returns(action, left, full)]
    return kept


def _returns(action: Action, left: Mapping[NodeId, Sequence[range]], full: Set[NodeId]) -> bool:
    if not isinstance(action, MoveSlots):
        return False
    return action.to in full or _overlaps(action.slots, left.get(action.to, ()))


def _overlaps(some: Sequence[range], others: Sequence[range]) -> bool:
    return any(overlap(one, other) for one in some for other in others)


def _removals_at_peak(
    policy: Policy, history: Sequence[Load], ring: Ring, limits: Limits, cooldown: Cooldown
) -> list[Action]:
    """The nodes that the policy would remove if the load were always at its latest peak.

    None if input had to wait: who works off a backlog has no nodes to spare.
    """
    start = history[-1].time - cooldown.scale_in_after.total_seconds()
    if history[0].time > start:
        return []
    peak = _peak([load for load in history if load.time >= start])
    if peak.backlog > 0:
        return []
    always = [replace(peak, epoch=load.epoch, time=load.time) for load in history]
    actions = policy.decide(always, ring, limits)
    return [action for action in actions if isinstance(action, RemoveNodes)]


def _peak(loads: Sequence[Load]) -> Load:
    """The newest load with the highest figures of all loads."""
    newest = loads[-1]
    found = [[load.nodes.get(name, node) for name, node in newest.nodes.items()] for load in loads]
    highest = [np.max([list(map(read, nodes)) for nodes in found], axis=0) for read in _READERS]
    nodes = {
        name: node._replace(**dict(zip(_FIGURES, figures, strict=True)))
        for (name, node), figures in zip(
            newest.nodes.items(), np.array(highest).T.tolist(), strict=True
        )
    }
    return replace(
        newest,
        nodes=nodes,
        seconds=reduce(np.maximum, (load.seconds for load in loads)),
        tuples=reduce(np.maximum, (load.tuples for load in loads)),
        epoch_seconds=min(load.epoch_seconds for load in loads),
        backlog=max(load.backlog for load in loads),
    )
