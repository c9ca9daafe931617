"""Keyed values on their way from a job's map to its packer: as Python pairs, or as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import pyarrow as pa

from millstream.state.aggregates.grouping import Bools, Ints


@dataclass(frozen=True, slots=True)
class Pairs:
    """Keyed values as Python pairs, or triples with an event time."""

    items: Sequence[tuple[Any, ...]]
    timed: bool
    zipped: tuple[tuple[Any, ...], ...] | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """The keys, the values and, if there are any, the times."""
        return tuple(zip(*self.items, strict=True)) if self.zipped is None else self.zipped

    def part(self, start: int, stop: int) -> Pairs:
        """The values from one position to another."""
        return Pairs(self.items[start:stop], self.timed)

    def filter(self, mask: Bools) -> Pairs:
        """The values where a mask is true."""
        return Pairs(list(compress(self.items, mask.tolist())), self.timed)


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """Keyed values as columns: canonical keys, value columns, event times."""

    keys: pa.Array
    values: dict[str, pa.Array]
    times: pa.Array | None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """The size of keys and values in bytes."""
        return sum(int(column.nbytes) for column in (self.keys, *self.values.values()))

    def part(self, start: int, stop: int) -> KeyedBatch:
        """The values from one position to another."""
        size = stop - start
        return KeyedBatch(
            self.keys.slice(start, size),
            {name: column.slice(start, size) for name, column in self.values.items()},
            None if self.times is None else self.times.slice(start, size),
        )

    def filter(self, mask: Bools) -> KeyedBatch:
        """The values where a mask is true."""
        chosen = pa.array(mask)
        return KeyedBatch(
            self.keys.filter(chosen),
            {name: column.filter(chosen) for name, column in self.values.items()},
            None if self.times is None else self.times.filter(chosen),
        )


@dataclass(frozen=True, slots=True)
class Timed:
    """Keyed values with the event time of each, in microseconds."""

    values: Pairs | KeyedBatch
    times: Ints

    def __len__(self) -> int:
        return len(self.times)

    def part(self, start: int, stop: int) -> Timed:
        """The values from one position to another."""
        return Timed(self.values.part(start, stop), self.times[start:stop])

    def filter(self, mask: Bools) -> Timed:
        """The values where a mask is true."""
        return Timed(self.values.filter(mask), self.times[mask])
