"""Exponential averages of what nodes report: per slot, per node, and of single figures.

The newest value has weight 1, each older one the *decay* times the weight of the next; so the
first value is the average itself. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.ring.ring import NodeId

Figures = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]
K = TypeVar("K", bound=Hashable)


class SlotAverages:
    """Averages of several figures per slot; they outlive the owners of the slots."""

    def __init__(self, figures: int, slots: int, decay: float) -> None:
        self._decay = decay
        self._weights = np.zeros(slots)
        self.values = np.zeros((figures, slots))

    def add(self, slots: Slots, figures: Sequence[Figures]) -> None:
        """Add an epoch's figures of some slots: an array for each figure."""
        weights = self._decay * self._weights[slots] + 1
        self._weights[slots] = weights
        gains = np.zeros(len(self._weights))
        gains[slots] = 1 / weights
        for average, reported in zip(self.values, figures, strict=True):
            # All slots at once: that is quicker than to pick those that were reported.
            newest = np.zeros(len(average))
            newest[slots] = reported
            newest -= average
            newest *= gains
            average += newest


class NodeAverages:
    """Averages of several figures of each node; those of nodes that left are dropped."""

    def __init__(self, figures: int, decay: float) -> None:
        self._decay = decay
        self._at: dict[NodeId, int] = {}
        self._weights = np.zeros(1)
        self._values = np.zeros((1, figures))

    def add(self, nodes: Sequence[NodeId], values: Figures) -> Figures:
        """Add an epoch's figures, a row for each node; return the averages."""
        nobody = len(self._weights) - 1
        known = [self._at.get(node, nobody) for node in nodes]
        old = self._values[known]
        weights = self._decay * self._weights[known] + 1
        averages: Figures = old + (values - old) / weights[:, np.newaxis]
        self._at = {node: at for at, node in enumerate(nodes)}
        self._weights = np.append(weights, 0.0)
        self._values = np.vstack([averages, np.zeros((1, values.shape[1]))])
        return averages


class NamedAverages(Generic[K]):
    """Averages of figures by name; a name that an epoch leaves out is zero in it."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._weight = 0.0
        self.values: Mapping[K, float] = {}

    def add(self, values: Mapping[K, float]) -> None:
        """Add an epoch's figures."""
        self._weight = self._decay * self._weight + 1
        averages = {}
        for name in dict.fromkeys((*self.values, *values)):
            old = self.values.get(name, 0.0)
            averages[name] = old + (values.get(name, 0.0) - old) / self._weight
        self.values = averages
