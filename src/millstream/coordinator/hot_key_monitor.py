"""The hot keys of a job: those with a large share of its tuples, over nodes and epochs.

Nodes report the largest keys of an epoch; older epochs count less and less. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.elastic.hot_keys import HotKeySketch

_Key = tuple[int, str]  # slot and text
_CAPACITY = 256
_PARTS = 1024  # of a tuple: counts are whole numbers, and shrink from epoch to epoch


class HotKeyMonitor:
    """Merges the reports about one job."""

    def __init__(self, decay: float, least: float) -> None:
        """``decay`` is the weight of the epoch before, ``least`` the least share of a hot key."""
        self._decay = decay
        self._least = least
        self._sketch: HotKeySketch[_Key] = HotKeySketch(_CAPACITY)
        self._tuples = 0.0

    def add(self, tuples: float, reported: Sequence[tuple[str, int, int]]) -> None:
        """Add an epoch: the job's tuples on all nodes, and the ``ReportedKey``s of each node."""
        self._tuples = self._decay * self._tuples + tuples
        aged: HotKeySketch[_Key] = HotKeySketch(_CAPACITY)
        known = self._sketch.top(0.0)
        _add(aged, [(each.key, int(self._decay * (each.count - each.error))) for each in known])
        # A key that is large on one of many nodes may be small in all; they are left out together.
        counts = np.array([count for _, _, count in reported], np.float64)
        large = np.flatnonzero(counts >= max(1.0, self._least / 2 * tuples)).tolist()
        chosen = [reported[at] for at in large]
        _add(aged, [((slot, key), count * _PARTS) for key, slot, count in chosen])
        self._sketch = aged

    def hottest(self) -> list[tuple[str, int, float]]:
        """The hot keys, largest first: text, slot and share of the job's tuples."""
        whole = self._tuples * _PARTS
        shares = [
            (each.key[1], each.key[0], (each.count - each.error) / whole)
            for each in self._sketch.top(0.0)
            if whole > 0
        ]
        shown = [found for found in shares if found[2] >= self._least]
        return sorted(shown, key=lambda found: (-found[2], found[1], found[0]))


def _add(sketch: HotKeySketch[_Key], counted: list[tuple[_Key, int]]) -> None:
    counted = [(key, count) for key, count in counted if count > 0]
    sketch.add([key for key, _ in counted], [count for _, count in counted])
