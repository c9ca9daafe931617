"""What a chaos run does to its drivers, by its seed: twenty seeds pass all points of the protocol.

Seven runs of each durability kill drivers: at every point of an epoch, and of a restart. Three
have two drivers on one checkpoint: one is stopped, the other goes on, the first wakes up. Every
other run of each has windows, which are open meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from millstream.coordinator.claim import Recovery
from millstream.node.machine import Durability
from tests.chaos import windowed, workload
from tests.chaos.moments import RESTART, Fault, Moment, Point, points
from tests.chaos.workload import Shape

Source = Literal["files", "recording"]
Order = Literal["after the end", "while it runs", "before it begins"]
"""When, in the life of the second driver, the first one wakes up."""

SEEDS = 20
EPOCHS = 9
_KILLING = 7
_ORDERS: tuple[Order, ...] = ("after the end", "while it runs", "before it begins")
_FAULTS: tuple[Fault, ...] = ("kill", "kill driver", "kill", "kill jvm")
_STOPS = ("staging", "staged", "committed", "published", "received", "returning")
_STOPS_IN_RESTART = ("claimed", "deriving", "derived", "in line", "launched")
_RARE = ("collecting garbage", "deleted links", "persisting", "persisted")
_STORES = {2: "files", 4: "redis"}
_CLUSTER = 5


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a driver: on how many nodes, and what happens to it."""

    nodes: int
    recovery: Recovery = "eager"
    moment: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class DriverPlan:
    """One run: all that its outcome depends on, apart from time.

    ``starts`` follow one another, unless there is an ``order``: then the last two of them run at
    once, of which the first is stopped and woken.
    """

    seed: int
    durability: Durability
    starts: tuple[Start, ...]
    order: Order | None = None
    shape: Shape = field(default_factory=lambda: Shape(builtin=True, two_sinks=True))
    source: Source = "files"
    store: str = "log"
    master: str = "local[2]"
    epochs: int = EPOCHS

    @property
    def jobs(self) -> tuple[str, ...]:
        """Those that have state."""
        return windowed.JOBS if self.shape.windows else workload.JOBS


def plan_of(seed: int) -> DriverPlan:
    """The plan of a seed."""
    durability: Durability = "epoch" if seed % 2 == 0 else "interval"
    rank = seed % SEEDS // 2
    dice = random.Random(f"driver {seed}")
    if rank < _KILLING:
        order, moments = None, _kills(seed, durability, rank, dice)
    else:
        order = _ORDERS[rank - _KILLING]
        moments = _stops(order, dice)
    starts = [
        Start(
            nodes=dice.randint(1, 4),
            recovery=_recovery(moment, dice),
            moment=moment,
        )
        for moment in moments
    ]
    return DriverPlan(
        seed=seed,
        durability=durability,
        starts=tuple(starts),
        order=order,
        shape=Shape(
            builtin=dice.random() < 0.5, two_sinks=dice.random() < 0.5, windows=rank % 2 == 1
        ),
        source="recording" if rank % 3 == 1 else "files",
        store=_STORES.get(rank, "log"),
        master="local-cluster[2,1,1024]" if rank == _CLUSTER else "local[2]",
    )


def _recovery(moment: Moment | None, dice: random.Random) -> Recovery:
    if moment is not None and moment.point in ("restoring", "restored"):
        return "eager"  # else nobody waits for it
    return dice.choice(("eager", "eager", "lazy"))


def _kills(
    seed: int, durability: Durability, rank: int, dice: random.Random
) -> list[Moment | None]:
    """The share of one run of all points: epochs and restarts in turn, and a start to the end."""
    order = random.Random(f"order {durability} {seed // SEEDS}")
    shares = [_share(points(durability), rank, order), _share(RESTART, rank, order)]
    known = {**points(durability), **RESTART}
    names = [*_in_turn(shares)]
    return [*(_moment(name, known[name], dice, dice.choice(_FAULTS)) for name in names), None]


def _share(all_points: Mapping[str, Point], rank: int, order: random.Random) -> list[str]:
    names = sorted(all_points)
    order.shuffle(names)
    return names[rank::_KILLING]


def _in_turn(shares: Sequence[list[str]]) -> Iterator[str]:
    for at in range(max(map(len, shares))):
        yield from (share[at] for share in shares if at < len(share))


def _stops(order: Order, dice: random.Random) -> list[Moment | None]:
    faults: tuple[Fault, ...] = ("stop driver", "stop all")
    if order != "before it begins" and dice.random() < 0.5:
        first = Moment(dice.choice(_STOPS_IN_RESTART), 1, 0.0, dice.choice(faults))
        return [Moment("published", 2, 0.0, "kill"), first, None]
    name = dice.choice(_STOPS)
    first = _moment(name, points("epoch")[name], dice, dice.choice(faults))
    if order != "before it begins":
        return [first, None]
    return [first, Moment(dice.choice(_STOPS_IN_RESTART), 1, 0.0, "stop driver")]


def _moment(name: str, point: Point, dice: random.Random, fault: Fault) -> Moment:
    delay = dice.uniform(0.0, point.delay)
    return Moment(name, 1 if name in RESTART or name in _RARE else dice.randint(1, 2), delay, fault)


@dataclass
class Outcome:
    """What a run came to."""

    plan: DriverPlan
    story: list[str] = field(default_factory=list)
    landed: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return not self.problems

    def line(self) -> str:
        plan = self.plan
        planned = sum(start.moment is not None for start in plan.starts)
        parts = [
            f"seed {plan.seed}",
            f"{plan.durability} {plan.master} {plan.store}",
            f"{plan.source}, {plan.shape}",
            "two drivers" if plan.order else f"{len(plan.starts)} starts",
            f"faults {self.landed} of {planned}",
            f"exact {'yes' if self.exact else 'NO'}",
            f"{self.seconds:.1f} s",
        ]
        return " | ".join(parts)

    def report(self) -> str:
        parts = [f"--- {self.line()}", *self.story, "problems:", *self.problems]
        return "\n".join([*parts, "reports of drivers:", *self.log, "---"])
