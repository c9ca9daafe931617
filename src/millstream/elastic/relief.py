"""Relief: the slots that new nodes take from the nodes they relieve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.elastic.actions import MoveSlots
from millstream.elastic.load import Load
from millstream.elastic.slot_shares import OwnedSlots, recut, runs
from millstream.ring.ring import NodeId, Ring


def relief(
    load: Load, ring: Ring, relieve: Sequence[NodeId], joined: Sequence[NodeId]
) -> list[MoveSlots]:
    """Return the moves that give nodes which joined their share of those they relieve.

    New nodes are dealt out in turn; a node with n helpers keeps one part in n + 1 of its load. If
    there was none, its slots are counted instead. A node with too few slots gets no more helpers.
    """
    index = {node: number for number, node in enumerate(ring.nodes)}
    owned = OwnedSlots(ring)
    moves: list[MoveSlots] = []
    for turn, node in enumerate(relieve):
        slots = owned.clockwise(index[node])
        helpers = joined[turn :: len(relieve)][: len(slots) - 1]
        values = load.seconds if load.seconds[slots].sum() > 0 else np.ones(ring.slots)
        pieces = [slots, *[slots[:0]] * len(helpers)]
        moves += [
            MoveSlots(
                slots=runs(each.slots),
                source=node,
                to=helpers[each.target - 1],
                reason=f"{helpers[each.target - 1]} has joined to relieve {node}",
            )
            for each in recut(pieces, values)
        ]
    return moves
