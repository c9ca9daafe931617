"""What a chaos run does to the nodes of a workflow, by its seed, and what it came to.

Nodes are added and removed, slots are moved and rebalanced, and nodes, executors and drivers are
killed, all at random moments: also while an earlier change is under way. Every run has all kinds of
steps; half of the runs are on a standalone master, half of each with either durability.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from millstream.node.machine import Durability
from tests.chaos.clusters import Master
from tests.chaos.moments import Fault
from tests.chaos.workload import Shape

Kind = Literal["scale", "move", "drain", "rebalance", "kill", "executor"]

MOST_NODES = 6
_DECK: tuple[Kind, ...] = (
    "scale",
    "scale",
    "scale",
    "move",
    "move",
    "drain",
    "rebalance",
    "kill",
    "kill",
    "executor",
)
_DRIVERS = (2, 1, 3, 1, 2)
_ENDS: tuple[Fault, ...] = ("kill", "kill driver", "kill jvm")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that is done to a run, some epochs and ``wait`` seconds after the one before.

    ``pick`` is a fraction of the list of candidates, ``size`` (0 to 1) how much: the nodes of a
    scale, the slots of a move. A step that is ``settled`` waits until earlier ones have been
    enacted, and all copies made.
    """

    kind: Kind
    epochs: int
    wait: float
    pick: float
    size: float
    settled: bool

    def of(self, candidates: list[str]) -> str:
        """The target among the candidates."""
        return candidates[int(self.pick * len(candidates))]

    @property
    def nodes(self) -> int:
        """How many nodes a scale asks for."""
        return 1 + int(self.size * MOST_NODES)


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a driver: its first nodes, what it does, and how it is killed at the end."""

    nodes: int
    steps: tuple[Step, ...]
    end: Fault | None = None
    wait: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ElasticPlan:
    """One run: all that its outcome depends on, apart from time.

    If drivers are killed, there is a checkpoint, from which the next one resumes.
    """

    seed: int
    master: Master
    durability: Durability
    shape: Shape
    starts: tuple[Start, ...]
    replicas: int = 1

    @property
    def has_checkpoint(self) -> bool:
        return len(self.starts) > 1

    @property
    def steps(self) -> list[Step]:
        """All steps, of all drivers."""
        return [step for start in self.starts for step in start.steps]


def plan_of(seed: int) -> ElasticPlan:
    """The plan of a seed."""
    dice = random.Random(f"elastic {seed}")
    deck = list(_DECK)
    dice.shuffle(deck)
    drivers = _DRIVERS[seed // 4 % len(_DRIVERS)]
    return ElasticPlan(
        seed=seed,
        master="local-cluster" if seed % 2 == 0 else "standalone",
        durability="epoch" if seed // 2 % 2 == 0 else "interval",
        shape=Shape(builtin=dice.random() < 0.5, two_sinks=dice.random() < 0.5),
        starts=tuple(
            Start(
                nodes=dice.randint(1, 4),
                steps=tuple(_step(kind, dice) for kind in deck[at::drivers]),
                end=dice.choice(_ENDS) if at < drivers - 1 else None,
                wait=dice.uniform(0.0, 2.0),
            )
            for at in range(drivers)
        ),
        replicas=dice.choice((1, 1, 2)),
    )


def _step(kind: Kind, dice: random.Random) -> Step:
    return Step(
        kind=kind,
        epochs=dice.randint(0, 3),
        wait=round(dice.uniform(0.0, 1.5), 3),
        pick=dice.random(),
        size=dice.random(),
        settled=dice.random() < 0.4,
    )


@dataclass
class Outcome:
    """What a run came to."""

    plan: ElasticPlan
    story: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return not self.problems

    @property
    def landed(self) -> int:
        """How many steps were done, the ends of drivers included."""
        return self.done.total()

    def line(self) -> str:
        plan = self.plan
        planned = len(plan.steps) + len(plan.starts) - 1
        done = ", ".join(f"{kind} {count}" for kind, count in sorted(self.done.items()))
        parts = [
            f"seed {plan.seed}",
            f"{plan.master} {plan.durability} replicas={plan.replicas}",
            f"{plan.shape}",
            f"drivers {len(plan.starts)}",
            f"steps {self.landed} of {planned} ({done})",
            f"epochs {self.epochs}",
            f"exact {'yes' if self.exact else 'NO'}",
            f"{self.seconds:.1f} s",
        ]
        return " | ".join(parts)

    def report(self) -> str:
        parts = [f"--- {self.line()}", *self.story, "problems:", *self.problems]
        return "\n".join([*parts, "reports of drivers:", *self.log, "---"])
