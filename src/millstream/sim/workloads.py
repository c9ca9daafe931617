"""Which workload a simulated run has."""

from __future__ import annotations

from millstream.sim.counted import COUNTED, GLOBAL
from millstream.sim.expiring import EXPIRING
from millstream.sim.joined import NEAR, TOGETHER
from millstream.sim.ordered import ORDERED
from millstream.sim.timed_keys import TIMERS
from millstream.sim.windowed import VARIANTS, windowed
from millstream.sim.workload import PLAIN, Workload

_WINDOWS = tuple(f"windows-{variant}" for variant in range(VARIANTS))
_OTHERS = {
    "plain": PLAIN,
    "ordered": ORDERED,
    "expiring": EXPIRING,
    "counted": COUNTED,
    "global": GLOBAL,
    "near": NEAR,
    "together": TOGETHER,
    "timers": TIMERS,
}
UNTIMED = ("plain", "ordered", "expiring")
EVENT_TIME = (*_WINDOWS, "counted", "global", "near", "together", "timers")
WORKLOADS = (*UNTIMED, *EVENT_TIME)
"""All of them, by name."""
CONSISTENT = ("plain", "ordered")
"""Those that can detect errors even if the input is not known."""


def workload_of(name: str) -> Workload:
    """The workload of a name."""
    return windowed(_WINDOWS.index(name)) if name in _WINDOWS else _OTHERS[name]


def drawn(seed: int) -> str:
    """The workload of a seed: every second is about event time."""
    names = EVENT_TIME if seed % 2 else UNTIMED
    # All of them come with and without a store, which every third seed has.
    return names[(seed // 6 + seed % 6) % len(names)]
