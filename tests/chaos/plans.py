"""What a chaos run is to do, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.node.machine import Durability
from tests.chaos.clusters import Master
from tests.chaos.faults import Mode
from tests.chaos.workload import Shape


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run: all that its outcome depends on, apart from time.

    With ``keys``, one more job has so many keys in its state, and touches some in each epoch.
    """

    seed: int
    mode: Mode = "single"
    replicas: int = 1
    durability: Durability = "epoch"
    nodes: int = 6
    faults: int = 5
    epochs: int = 20
    keys: int = 0
    node_timeout: float = 3.0


@dataclass
class Outcome:
    """What a run came to."""

    plan: Plan
    master: Master
    faults: list[str] = field(default_factory=list)
    landed: int = 0
    epochs: int = 0
    lost: int = 0
    fenced: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slow: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return not self.problems

    def line(self) -> str:
        plan = self.plan
        parts = [
            f"seed {plan.seed}",
            f"{self.master} {plan.durability} {plan.mode} replicas={plan.replicas}",
            f"{Shape.of(plan.seed)}{f', {plan.keys:,} keys' if plan.keys else ''}",
            f"faults {self.landed} of {plan.faults}",
            f"epochs {self.epochs}",
            f"nodes lost {self.lost} of {plan.nodes}",
            f"living nodes fenced for being slow {len(self.fenced)}",
            f"exact {'yes' if self.exact else 'NO'}",
            f"{self.seconds:.1f} s",
        ]
        return " | ".join(parts)

    def report(self) -> str:
        parts = [f"--- {self.line()}", "faults:", *self.faults, "problems:", *self.problems]
        return "\n".join([*parts, "slow epochs:", *self.slow, "log:", *self.log, "---"])
