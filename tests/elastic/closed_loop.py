"""A run in a few lines: load follows slots and speeds, and actions are enacted at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.cooldown import Cooldown, decide_calmly
from millstream.elastic.decisions import Decision, decided
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load, NodeLoad
from millstream.elastic.policy import Policy
from millstream.elastic.slot_shares import weights_of
from millstream.ring.balance import rebalanced
from millstream.ring.ring import NodeId, Ring

Demand = npt.NDArray[np.float64]
"""Tuples per second and slot."""


def node_ids(count: int) -> list[NodeId]:
    return [NodeId(f"n{number:03}") for number in range(count)]


@dataclass
class ClosedLoop:
    """Nodes that reduce ``speed`` tuples a second; an epoch takes as long as its slowest node."""

    ring: Ring
    demand: Demand
    speeds: dict[NodeId, float] = field(default_factory=dict)
    interval: float = 5.0
    time: float = 0.0
    epoch: int = 0
    joined: int = 0
    history: list[Load] = field(default_factory=list)
    past: list[Decision] = field(default_factory=list)

    def run_epoch(self) -> Load:
        """Reduce an epoch; the nodes report."""
        tuples = self.demand * self.interval
        counts = np.bincount(self.ring.table, weights=tuples)
        speeds = np.array([self.speeds.get(node, 1.0) for node in self.ring.nodes])
        spent = counts / speeds
        length = max(self.interval, float(spent.max()))
        self.time += length
        self.epoch += 1
        nodes = {
            node: NodeLoad(
                node=node,
                cpu=spent[index] / length,
                tuples=counts[index],
                reduce_seconds=spent[index],
            )
            for index, node in enumerate(self.ring.nodes)
        }
        load = Load(
            epoch=self.epoch,
            time=self.time,
            nodes=nodes,
            seconds=tuples / speeds[self.ring.table],
            tuples=tuples,
            state_bytes=np.zeros(self.ring.slots),
            epoch_seconds=length,
        )
        self.history = [*self.history[-99:], load]
        return load

    def decide(self, policy: Policy, limits: Limits) -> list[Action]:
        """Run an epoch, and enact what the policy decides from it."""
        self.run_epoch()
        actions = policy.decide(self.history, self.ring, limits)
        self.enact(actions)
        return actions

    def decide_calmly(self, policy: Policy, limits: Limits, cooldown: Cooldown) -> list[Action]:
        """The same with a cool-down."""
        load = self.run_epoch()
        actions = decide_calmly(policy, self.history, self.ring, limits, self.past, cooldown)
        if actions:
            self.past.append(decided(policy.name, actions, load, self.ring))
        self.enact(actions)
        return actions

    def enact(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case MoveSlots():
                    self._move(action)
                case AddNodes():
                    numbers = range(self.joined, self.joined + action.count)
                    new = [NodeId(f"new{number:03}") for number in numbers]
                    self.joined += action.count
                    self._rebalance([*self.ring.nodes, *new])
                case RemoveNodes():
                    self._rebalance([n for n in self.ring.nodes if n not in action.nodes])

    def _rebalance(self, nodes: Sequence[NodeId]) -> None:
        """What the coordinator does when the number of nodes changes."""
        self.ring = rebalanced(self.ring, weights_of(self.history[-1]), nodes)

    def _move(self, move: MoveSlots) -> None:
        slots = np.concatenate([np.arange(run.start, run.stop) for run in move.slots])
        self.ring = self.ring.moved(slots, move.to)


def skewed(slots: int, seed: int, *, hot_part: float = 0.1, times: float = 8.0) -> Demand:
    """A demand in which a contiguous part of the slots has several times the load of the others."""
    random = np.random.default_rng(seed)
    demand = random.uniform(0.8, 1.2, slots)
    start, length = int(random.integers(slots)), max(1, int(slots * hot_part))
    demand[(start + np.arange(length)) % slots] *= times
    shares: Demand = demand / demand.sum()
    return shares


def load_of(
    ring: Ring,
    cpu: Mapping[NodeId, float],
    *,
    epoch: int = 1,
    time: float = 0.0,
    seconds: Demand | None = None,
    queue: float = 0.0,
    epoch_seconds: float = 1.0,
) -> Load:
    """A load of nodes with these parts of a core; seconds follow from them unless given."""
    index = {node: number for number, node in enumerate(ring.nodes)}
    counts = np.bincount(ring.table, minlength=len(ring.nodes))
    if seconds is None:
        each = np.array([cpu.get(node, 0.0) for node in ring.nodes]) * epoch_seconds / counts
        seconds = each[ring.table]
    spent = np.bincount(ring.table, weights=seconds, minlength=len(ring.nodes))
    nodes = {
        node: NodeLoad(
            node=node,
            cpu=part,
            queue=queue,
            tuples=1000 * float(spent[index[node]]) if node in index else 0.0,
            reduce_seconds=float(spent[index[node]]) if node in index else 0.0,
        )
        for node, part in cpu.items()
    }
    return Load(
        epoch=epoch,
        time=time,
        nodes=nodes,
        seconds=seconds,
        tuples=1000 * seconds,
        state_bytes=np.zeros(ring.slots),
        epoch_seconds=epoch_seconds,
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Load], Ring, Limits]:
    """Histories with any load, on rings of any shape; some nodes are idle, silent or leaving."""
    slots = draw(st.integers(2, 64))
    positions = sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1, max_size=10)))
    names = [*map(NodeId, "abcdef")]
    ring = Ring(
        draw(st.integers(0, 9)),
        slots,
        tuple((position, draw(st.sampled_from(names))) for position in positions),
    )
    reporting = {*names, NodeId("g")} - draw(st.sets(st.sampled_from(names), max_size=2))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    # From all alike to a few with nearly everything.
    tails, busy = draw(st.sampled_from([0.1, 1, 4])), draw(st.sampled_from([0.05, 0.4, 0.9, 2.0]))
    cpu = {node: busy * random.random() ** tails for node in sorted(reporting)}
    shares = random.random(slots) ** tails * random.choice([0.0, 1.0], slots, p=[0.2, 0.8])
    history = []
    for number in range(draw(st.sampled_from([3, 2, 1, 0]))):
        noise = random.uniform(0.9, 1.1)
        nodes = {
            node: NodeLoad(
                node=node,
                cpu=noise * part,
                queue=random.choice([0.0, busy]),
                tuples=random.choice([0.0, 100.0, 100 * random.random()]),
                reduce_seconds=random.choice([0.0, part, part]),
                kind=str(random.choice(["", "large"])),
            )
            for node, part in cpu.items()
        }
        history.append(
            Load(
                epoch=number,
                time=5.0 * number,
                nodes=nodes,
                seconds=noise * shares,
                tuples=shares * random.random(slots),
                state_bytes=np.zeros(slots),
                epoch_seconds=draw(st.sampled_from([1.0, 10.0, 0.0])),
            )
        )
    least = draw(st.integers(1, 4))
    limits = Limits(
        min_nodes=least,
        max_nodes=least + draw(st.integers(0, 8)),
        standby=draw(st.integers(0, 3)),
    )
    return history, ring, limits
