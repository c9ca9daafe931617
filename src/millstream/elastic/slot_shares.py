"""Shares of load: what each node carries, how uneven that is, and slots worth a given amount.

The arithmetic that policies share. Everything is linear in slots or in nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millstream.elastic.load import Load
from millstream.ring.ring import NodeId, Ring

Slots = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

# A second and third look for slots that fit pay when large slots lie in the way.
_PASSES = 4
_CLOSE = 0.95


@dataclass(frozen=True)
class Transfer:
    """Slots that go from one node to another, both as indexes, and what they are worth."""

    slots: Slots
    source: int
    target: int
    amount: float


def per_node(values: Values, ring: Ring) -> Values:
    """Add up a value per slot for each node of the ring."""
    shares: Values = np.bincount(ring.table, values, len(ring.nodes)).astype(np.float64)
    return shares


def unevenness(shares: Values) -> float:
    """The largest share over the mean; 1 if there is no load."""
    mean = float(shares.mean()) if len(shares) else 0.0
    return float(shares.max()) / mean if mean > 0 else 1.0


def weights_of(load: Load) -> Values:
    """What each slot costs, in seconds per epoch: half as measured, half by its tuples.

    Measured seconds show keys that take longer than others, but also whatever else a host did
    meanwhile. Policies and the balance of slots must weigh alike, or one would undo the other.
    """
    tuples, seconds = float(load.tuples.sum()), float(load.seconds.sum())
    if tuples <= 0 or seconds <= 0:
        return load.seconds
    weights: Values = (load.seconds + load.tuples * (seconds / tuples)) / 2
    return weights


def imbalance(load: Load, ring: Ring) -> float:
    """The load of the busiest node over the mean of all nodes that own slots."""
    return unevenness(per_node(weights_of(load), ring))


def after(shares: Values, transfers: Sequence[Transfer]) -> Values:
    """The shares after transfers whose amounts have the same unit."""
    result = shares.copy()
    for transfer in transfers:
        result[transfer.source] -= transfer.amount
        result[transfer.target] += transfer.amount
    return result


class OwnedSlots:
    """The slots of every node, sorted by owner once."""

    def __init__(self, ring: Ring) -> None:
        self._slots = np.argsort(ring.table, kind="stable")
        self._bounds = np.searchsorted(ring.table[self._slots], np.arange(len(ring.nodes) + 1))
        first: dict[NodeId, int] = {}
        for position, node in ring.tokens:
            first.setdefault(node, position)
        self._tokens = [first[node] for node in ring.nodes]

    def of(self, index: int) -> Slots:
        """The slots of a node, in increasing order."""
        return self._slots[self._bounds[index] : self._bounds[index + 1]]

    def clockwise(self, index: int) -> Slots:
        """The slots of a node, those next to its clockwise neighbour last."""
        slots = self.of(index)
        behind = int(np.searchsorted(slots, self._tokens[(index + 1) % len(self._tokens)]))
        return np.concatenate([slots[behind:], slots[:behind]])


def portion(slots: Slots, values: Values, amount: float) -> Slots:
    """Return the last of these slots, worth up to an amount; never all of them.

    A slot that is worth more than what is still wanted stays, so a hot key gets its owner to
    itself. Otherwise the slots are taken in a row, to need few tokens.
    """
    left, wanted = slots, amount
    taken: list[Slots] = []
    for _ in range(_PASSES):
        fitting = np.flatnonzero(values[left] <= wanted)[::-1]
        worth = np.cumsum(values[left[fitting]])
        count = int(np.searchsorted(worth, wanted, side="right"))
        if count == 0 or worth[count - 1] <= 0:
            break
        # Slots without any load that follow would be moved for nothing.
        count = int(np.searchsorted(worth, worth[count - 1], side="left")) + 1
        taken.append(left[fitting[:count]])
        wanted -= float(worth[count - 1])
        left = np.delete(left, fitting[:count])
        if wanted <= amount * (1 - _CLOSE):
            break
    chosen = np.concatenate(taken) if taken else slots[:0]
    return chosen if len(chosen) < len(slots) else chosen[:-1]


def recut(pieces: Sequence[Slots], values: Values) -> list[Transfer]:
    """Move the borders between neighbours so that all carry about the same; source and target
    are positions in ``pieces``.

    The slots stay in their order, so each neighbour keeps a contiguous piece; each keeps a slot.
    """
    slots = np.concatenate(pieces)
    worth = np.cumsum(values[slots])
    cuts = [0]
    for left in range(len(pieces), 1, -1):
        start = cuts[-1]
        done = float(worth[start - 1]) if start else 0.0
        goal = done + (float(worth[-1]) - done) / left
        cut = int(np.searchsorted(worth, goal, side="left"))
        below = float(worth[cut - 1]) if cut else 0.0
        cut += worth[cut] - goal <= goal - below
        cuts.append(min(max(cut, start + 1), len(slots) - left + 1))
    numbers = np.arange(len(pieces))
    old = np.repeat(numbers, [len(piece) for piece in pieces])
    new = np.repeat(numbers, np.diff([*cuts, len(slots)]))
    moving = np.flatnonzero(old != new)
    # Both are in increasing order: equal pairs of source and target lie together.
    change = np.flatnonzero((np.diff(old[moving]) != 0) | (np.diff(new[moving]) != 0)) + 1
    groups = [group for group in np.split(moving, change) if len(group)]
    return [
        Transfer(slots[group], int(old[group[0]]), int(new[group[0]]), _sum(values, slots[group]))
        for group in groups
    ]


def runs(slots: Slots) -> tuple[range, ...]:
    """Return slots as runs, in increasing order."""
    ordered = np.sort(slots)
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    parts = np.split(ordered, cuts) if len(ordered) else []
    return tuple(range(int(part[0]), int(part[-1]) + 1) for part in parts)


def _sum(values: Values, slots: Slots) -> float:
    return float(values[slots].sum())
