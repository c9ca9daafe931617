"""The faults that are injected into a run: a seeded schedule, and the targets of each.

A run must survive all of them. A node, or all nodes of one executor, may be killed when the ring is
complete; two neighbours when there are two copies; a zone when the copies are in the other one. At
least two nodes are left. A node that is stopped for half of ``node_timeout`` must
not be lost; one that is stopped for twice as long may be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.spark.status import Status
from millstream.wire.control import NodeStatus

Kind = Literal[
    "kill", "pause", "half", "twice", "freeze", "worker", "executor", "neighbours", "zone"
]
Mode = Literal["single", "kills", "stops", "neighbours", "zones"]

LEFT = 2
_DECKS: dict[Mode, tuple[Kind, ...]] = {
    "single": ("kill", "pause", "freeze", "worker", "executor"),
    "kills": ("kill",),
    "stops": ("half", "twice", "half", "kill"),
    "neighbours": ("neighbours", "neighbours", "worker", "pause"),
    "zones": ("zone",),
}


@dataclass(frozen=True)
class Fault:
    """One fault at a node: when the ring is complete, some epochs after the fault before.

    ``wait`` (seconds) places it anywhere within an epoch. ``pick`` is a fraction of the list of
    candidates; ``length``, from 0 to 1, is how long a stopped process stays stopped.
    """

    kind: Kind
    epochs: int
    wait: float
    pick: float
    length: float

    def of(self, candidates: Sequence[int]) -> int:
        """The index of the target among the candidates."""
        return candidates[int(self.pick * len(candidates))]


def schedule(seed: int, mode: Mode, count: int) -> list[Fault]:
    """The faults of a run: every kind of the mode in turn, in an order of the seed's."""
    dice = random.Random(f"faults {seed}")
    kinds: list[Kind] = []
    while len(kinds) < count:
        deck = list(_DECKS[mode])
        dice.shuffle(deck)
        kinds += deck
    return [
        Fault(
            kind,
            epochs=dice.randint(1, 3),
            wait=round(dice.uniform(0.0, 1.5), 3),
            pick=dice.random(),
            length=dice.random(),
        )
        for kind in kinds[:count]
    ]


def is_complete(status: Status, replicas: int, slots: int) -> bool:
    """Whether every slot has all the copies that it can have, and all are in sync."""
    copies = min(replicas, len(status.nodes) - 1)
    fed = sum(node.copies for node in status.nodes)
    return fed >= copies * slots and all(n.copies == n.in_sync for n in status.nodes)


def clockwise(status: Status) -> list[NodeStatus]:
    """The nodes in the order of the ring, which is that of its drawing."""
    names = [line.split()[0] for line in status.drawing.splitlines()[1:]]
    return [node for name in names for node in status.nodes if node.node.startswith(name)]


def victims(fault: Fault, status: Status) -> list[NodeStatus]:
    """The nodes that end with a fault; none if too few would be left."""
    nodes = clockwise(status)
    if not nodes:
        return []
    at = fault.of(range(len(nodes)))
    hit = [nodes[at]]
    if fault.kind == "neighbours":
        hit.append(nodes[(at + 1) % len(nodes)])
    elif fault.kind == "executor":
        hit = [node for node in nodes if node.executor == nodes[at].executor]
    elif fault.kind == "zone":
        hit = [node for node in nodes if node.zone == nodes[at].zone]
    elif fault.kind in ("pause", "half", "worker"):
        return hit  # nobody is lost
    return hit if len(nodes) - len(hit) >= LEFT else []
