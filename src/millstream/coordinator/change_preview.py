"""Previews: what a change of nodes or slots would do, computed from the roster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millstream.coordinator.roster import Roster
from millstream.coordinator.scaling import Scaling
from millstream.errors import ConfigError
from millstream.ring.balance import Move, pending
from millstream.ring.ring import NodeId, Ring, RingError


@dataclass(frozen=True)
class Preview:
    """Active nodes before and after, how many have to be started, and the slots that move.

    Nodes that do not exist yet are called ``new-1``, ``new-2``…
    """

    before: int
    after: int
    joining: int
    leaving: tuple[NodeId, ...]
    moves: tuple[Move, ...]


def scaled(roster: Roster, scaling: Scaling, nodes: int) -> Preview:
    """What it means to have so many active nodes."""
    if not 1 <= nodes <= roster.placement.ring.slots:
        raise ConfigError(
            f"nodes must be from 1 to {roster.placement.ring.slots} (slots), got {nodes}"
        )
    active = roster.active
    if nodes <= len(active):
        return _without(roster, scaling, scaling.least_useful(len(active) - nodes))
    standby = [node for node in roster.domains if node in roster.standby]
    spare = standby[: nodes - len(active)]
    new = [NodeId(f"new-{at + 1}") for at in range(nodes - len(active) - len(spare))]
    return _aimed(roster, scaling, (*active, *spare, *new), joining=len(new))


def rebalanced(roster: Roster, scaling: Scaling) -> Preview:
    """What a fair share for every node means."""
    return _aimed(roster, scaling, roster.active)


def drained(roster: Roster, scaling: Scaling, node: NodeId) -> Preview:
    """What it means that a node leaves."""
    return _without(roster, scaling, [node] if node not in roster.leaving else [])


def moved(roster: Roster, slots: Iterable[int], to: NodeId) -> Preview:
    """What it means that a node gets slots."""
    goal = roster.goal
    nodes = list(dict.fromkeys([*goal.nodes, to]))
    table = np.array([nodes.index(node) for node in goal.nodes], np.int32)[goal.table]
    table[list(slots)] = nodes.index(to)
    count = len(roster.active)
    after = Ring.of_table(goal.version, nodes, table)
    return Preview(count, count, 0, (), tuple(pending(roster.placement.ring, after)))


def _without(roster: Roster, scaling: Scaling, leaving: Sequence[NodeId]) -> Preview:
    active = [node for node in roster.active if node not in leaving]
    if not active:
        raise RingError("the last active node cannot leave", "add another node first")
    return _aimed(roster, scaling, active, leaving=leaving)


def _aimed(
    roster: Roster,
    scaling: Scaling,
    active: Sequence[NodeId],
    *,
    joining: int = 0,
    leaving: Sequence[NodeId] = (),
) -> Preview:
    moves = pending(roster.placement.ring, scaling.target_ring(active))
    return Preview(len(roster.active), len(active), joining, tuple(leaving), tuple(moves))
