"""Decisions: what a policy decided from which load, what it predicted, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.elastic.actions import Action
from millstream.elastic.load import Load
from millstream.elastic.slot_shares import imbalance
from millstream.elastic.wait_queue import mean_latency
from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The load of a run in a few figures; predictions have the names of these fields.

    ``imbalance`` is the busiest node over the mean; ``latency`` is the mean of all tuples, in
    seconds; CPU is in parts of a core.
    """

    nodes: int
    imbalance: float
    latency: float
    mean_cpu: float
    max_cpu: float
    tuples: float
    busiest: NodeId | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a policy decided after an epoch, and from what.

    ``ring`` is the version that was in force. With ``dry_run`` nothing was enacted.
    """

    time: float
    epoch: int
    ring: int
    policy: str
    actions: tuple[Action, ...]
    before: Summary
    dry_run: bool = False

    @property
    def predicted(self) -> Mapping[str, float]:
        """What the actions together are expected to lead to."""
        return {name: value for each in self.actions for name, value in each.predicted.items()}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a decision: figures before and after it, and each prediction beside them."""

    decision: Decision
    epoch: int
    after: Summary

    @property
    def errors(self) -> Mapping[str, float]:
        """By how much each prediction was too high."""
        seen = vars(self.after)
        return {
            name: value - float(seen[name])
            for name, value in self.decision.predicted.items()
            if name in seen
        }

    def __str__(self) -> str:
        before, after = self.decision.before, self.after
        told = self.decision.predicted
        return ", ".join(
            f"{name} from {vars(before)[name]:.3g} to {vars(after)[name]:.3g}"
            + (f" (predicted {told[name]:.3g})" if name in told else "")
            for name in ("imbalance", "latency", "nodes")
        )


def summarise(load: Load, ring: Ring) -> Summary:
    """Return the load of a run in a few figures."""
    cpus = {node: load.nodes[node].cpu for node in ring.nodes if node in load.nodes}
    return Summary(
        nodes=len(ring.nodes),
        imbalance=imbalance(load, ring),
        latency=mean_latency(load),
        mean_cpu=sum(cpus.values()) / len(cpus) if cpus else 0.0,
        max_cpu=max(cpus.values(), default=0.0),
        tuples=float(load.tuples.sum()),
        busiest=max(cpus, key=lambda node: cpus[node], default=None),
    )


def decided(
    policy: str, actions: Sequence[Action], load: Load, ring: Ring, *, dry_run: bool = False
) -> Decision:
    """Record what a policy decided from this load."""
    return Decision(
        time=load.time,
        epoch=load.epoch,
        ring=ring.version,
        policy=policy,
        actions=tuple(actions),
        before=summarise(load, ring),
        dry_run=dry_run,
    )


def outcome(decision: Decision, load: Load, ring: Ring) -> Outcome:
    """Compare a decision with the load, and the ring, after it was enacted."""
    return Outcome(decision=decision, epoch=load.epoch, after=summarise(load, ring))
