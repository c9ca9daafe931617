"""What is checked about the actions of a decision before they are enacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.ring.ring import NodeId, Ring
from millstream.state.values import value_text


class Problem(NamedTuple):
    """Why actions are not possible, and what to do instead."""

    what: str
    fix: str


def problem_with(actions: Sequence[object], ring: Ring, limits: Limits) -> Problem | None:
    """Return why these actions cannot be enacted together; None if they can."""
    known = set(ring.nodes)
    for action in actions:
        if not isinstance(action, get_args(Action)):
            return Problem(
                f"{value_text(action)}", "return MoveSlots, AddNodes or RemoveNodes objects"
            )
        unknown = [node for node in _named(action) if node not in known]
        if unknown:
            have = ", ".join(ring.nodes)
            return Problem(f"no node {', '.join(unknown)} owns slots", f"the nodes are {have}")
    moves = [action for action in actions if isinstance(action, MoveSlots)]
    removed = [node for each in actions if isinstance(each, RemoveNodes) for node in each.nodes]
    added = sum(action.count for action in actions if isinstance(action, AddNodes))
    return _problem_with_moves(moves, ring) or _problem_with_nodes(
        moves, removed, added, ring, limits
    )


def _named(action: Action) -> tuple[NodeId, ...]:
    match action:
        case MoveSlots():
            return action.source, action.to
        case AddNodes():
            return action.relieve
        case RemoveNodes():
            return action.nodes


def _problem_with_moves(moves: Sequence[MoveSlots], ring: Ring) -> Problem | None:
    index = {node: number for number, node in enumerate(ring.nodes)}
    moved = np.zeros(ring.slots, bool)
    for move in moves:
        if move.slots[-1].stop > ring.slots:
            what = f"slot {move.slots[-1].stop - 1} does not exist"
            return Problem(what, f"slots are 0 to {ring.slots - 1}")
        for run in move.slots:
            part = slice(run.start, run.stop)
            if (ring.table[part] != index.get(move.source, -1)).any():
                what = f"{move.source} does not own all of slots {run.start} to {run.stop - 1}"
                return Problem(what, "move slots from the node that ring.owner(slot) names")
            if moved[part].any():
                what = f"slots {run.start} to {run.stop - 1} are moved twice"
                return Problem(what, "move a slot once in a decision")
            moved[part] = True
    return None


def _problem_with_nodes(
    moves: Sequence[MoveSlots], removed: Sequence[NodeId], added: int, ring: Ring, limits: Limits
) -> Problem | None:
    nodes = len(ring.nodes)
    if len(set(removed)) < len(removed):
        return Problem("a node is removed twice", "remove a node once")
    for move in moves:
        if move.to in removed:
            return Problem(f"{move.to} is removed", "move slots to a node that stays")
    if added and nodes + added > limits.max_nodes:
        what = f"there would be {nodes + added} nodes"
        return Problem(what, f"at most {limits.max_nodes} are allowed")
    if removed and nodes - len(removed) < limits.min_nodes:
        what = f"{nodes - len(removed)} nodes would be left"
        return Problem(what, f"at least {limits.min_nodes} must stay")
    return None
