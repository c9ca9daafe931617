"""Which workload a simulated run has."""

from __future__ import annotations

from millstream.sim.expiring import EXPIRING
from millstream.sim.ordered import ORDERED
from millstream.sim.windowed import VARIANTS, windowed
from millstream.sim.workload import PLAIN, Workload

EVENT_TIME = tuple(f"windows-{variant}" for variant in range(VARIANTS))
UNTIMED = ("plain", "ordered", "expiring")
WORKLOADS = (*UNTIMED, *EVENT_TIME)
"""Of all kinds, by name; those of the second are about event time."""
CONSISTENT = ("plain", "ordered")
"""Those that can tell what is wrong even if the input is not known."""


def workload_of(name: str) -> Workload:
    """The workload of a name."""
    if name in EVENT_TIME:
        return windowed(EVENT_TIME.index(name))
    return {"plain": PLAIN, "ordered": ORDERED, "expiring": EXPIRING}[name]


def drawn(seed: int) -> str:
    """The workload of a seed: every second is about event time."""
    names = EVENT_TIME if seed % 2 else UNTIMED
    return names[seed // 2 % len(names)]
