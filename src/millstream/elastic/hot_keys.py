"""Hot keys: a space-saving sketch, which finds the keys with a large share in bounded memory.

After Metwally, Agrawal and El Abbadi (2005), fed by the batch: a batch counts as an exact sketch
that is merged. A key that is not in the sketch may have occurred up to ``bound`` times, and gets
that many on entering, as its ``error``; the largest counts are kept. With ``capacity`` counters
the bound is at most total / capacity, so every key with a larger share is in the sketch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class KeyCount(Generic[K]):
    """A key that occurred at most ``count`` and at least ``count - error`` times."""

    key: K
    count: int
    error: int


class HotKeySketch(Generic[K]):
    """Counts the most frequent keys, at most ``capacity`` of them."""

    def __init__(self, capacity: int) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ConfigError(f"capacity must be an integer of at least 1, got {capacity!r}")
        self.capacity = capacity
        self.total = 0
        self.bound = 0
        self._counts: dict[K, int] = {}
        self._errors: dict[K, int] = {}

    def add(self, keys: Sequence[K], counts: Sequence[int] | npt.NDArray[np.integer[Any]]) -> None:
        """Count a batch: keys, and how often each occurred."""
        numbers = np.asarray(counts, np.int64)
        if numbers.shape != (len(keys),) or (numbers < 0).any():
            raise ConfigError(f"there must be a count of at least 0 for each of {len(keys)} keys")
        batch = _batch(keys, numbers)
        self.total += int(numbers.sum())
        for key in self._counts:
            self._counts[key] += batch.pop(key, 0)
        fresh, dropped = _largest(batch, self.capacity)
        # Before the bound is raised: these are new to the sketch as it was.
        self._errors.update(dict.fromkeys(fresh, self.bound))
        self._counts.update({key: count + self.bound for key, count in fresh.items()})
        self._keep_largest(self.bound + dropped)

    def merge(self, other: HotKeySketch[K]) -> HotKeySketch[K]:
        """Return the sketch of the keys of both."""
        if other.capacity != self.capacity:
            raise ConfigError(f"capacities must be equal, got {self.capacity}, {other.capacity}")
        merged = HotKeySketch[K](self.capacity)
        merged.total = self.total + other.total
        for key in dict.fromkeys([*self._counts, *other._counts]):
            merged._counts[key] = sum(each._counts.get(key, each.bound) for each in (self, other))
            merged._errors[key] = sum(each._errors.get(key, each.bound) for each in (self, other))
        merged._keep_largest(self.bound + other.bound)
        return merged

    def top(self, share: float) -> list[KeyCount[K]]:
        """The keys that may have at least this share of the total, the most frequent first."""
        found = [
            KeyCount(key, count, self._errors[key])
            for key, count in self._counts.items()
            if count >= share * self.total and count > 0
        ]
        return sorted(found, key=lambda each: -each.count)

    def _keep_largest(self, bound: int) -> None:
        """Forget the smallest counts beyond the capacity; ``bound`` is that of all other keys."""
        kept, dropped = _largest(self._counts, self.capacity)
        self.bound = max(bound, dropped)
        if len(kept) < len(self._counts):
            self._counts = kept
            self._errors = {key: self._errors[key] for key in kept}


def _batch(keys: Sequence[K], counts: npt.NDArray[np.int64]) -> dict[K, int]:
    numbers = counts.tolist()
    batch = dict(zip(keys, numbers, strict=True))
    if len(batch) < len(keys):  # a key occurs more than once: its counts are added up
        batch = dict.fromkeys(batch, 0)
        for key, number in zip(keys, numbers, strict=True):
            batch[key] += number
    return batch


def _largest(counts: Mapping[K, int], most: int) -> tuple[dict[K, int], int]:
    """The largest counts, and the largest of the others."""
    if len(counts) <= most:
        return dict(counts), 0
    numbers = np.fromiter(counts.values(), np.int64, len(counts))
    # Partitioned, not sorted: a batch may have many keys.
    order = np.argpartition(-numbers, most - 1)
    keys = list(counts)
    kept = {keys[at]: int(numbers[at]) for at in np.sort(order[:most]).tolist()}
    return kept, int(numbers[order[most:]].max())
