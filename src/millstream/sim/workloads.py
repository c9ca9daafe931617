"""Which workload a simulated run has."""

from __future__ import annotations

from millstream.sim.windowed import VARIANTS, windowed
from millstream.sim.workload import PLAIN, Workload


def workload_of(windows: int | None) -> Workload:
    """The workload of a variant with windows, or the one without."""
    return PLAIN if windows is None else windowed(windows)


def drawn(seed: int) -> int | None:
    """The variant of a seed: every second has windows."""
    return seed // 2 % VARIANTS if seed % 2 else None
