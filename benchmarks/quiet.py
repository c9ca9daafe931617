"""Whether the machine does other work: figures that were taken beside it mean little."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.process_tree import busy_seconds

BOUND = 0.05
SECONDS = 3.0
LOAD_BOUND = 4.0


@dataclass(frozen=True)
class Load:
    """How busy the machine is: its CPU time per second and core, and the load average per core."""

    busy: float
    average: float

    @property
    def is_quiet(self) -> bool:
        """The load average lags minutes behind: only one that no past benchmark leaves counts."""
        return self.busy <= BOUND and self.average <= LOAD_BOUND


def load_now(
    *,
    seconds: float = SECONDS,
    busy: Callable[[], float] = busy_seconds,
    sleep: Callable[[float], None] = time.sleep,
    average: Callable[[], tuple[float, float, float]] = os.getloadavg,
    cores: int = os.cpu_count() or 1,
) -> Load:
    """Watch the machine for some seconds, in which this process does nothing."""
    before = busy()
    sleep(seconds)
    return Load((busy() - before) / seconds / cores, average()[0] / cores)


def require_quiet(load: Load, *, anyway: bool) -> None:
    """End the benchmark if the machine is loaded, unless it is to run anyway."""
    if not load.is_quiet and not anyway:
        raise SystemExit(
            f"other processes take {load.busy:.0%} of the CPU time (at most {BOUND:.0%}), and the "
            f"load average is {load.average:.1f} per core (at most {LOAD_BOUND:.0f}): "
            "end what else runs, or take figures all the same with --even-if-loaded"
        )
