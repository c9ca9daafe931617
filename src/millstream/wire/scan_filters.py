"""What of a scan is sent: keys of a range, or those with the largest values. Applied on nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError

Item = tuple[Any, Any]


@dataclass(frozen=True)
class KeyRange:
    """Keys with a prefix, from ``start`` on, and before ``stop``; None is no bound."""

    prefix: str | bytes | None = None
    start: Any = None
    stop: Any = None

    def __post_init__(self) -> None:
        if self.prefix is not None and not isinstance(self.prefix, str | bytes):
            raise ConfigError(
                f"only keys of text or bytes have a prefix, got {self.prefix!r}; give a range"
            )

    def select(self, items: Iterable[Item]) -> list[Item]:
        """The items whose keys are in the range."""
        return [item for item in items if self._has(item[0])]

    def _has(self, key: Any) -> bool:
        if self.prefix is not None and not key.startswith(self.prefix):
            return False
        if self.start is None and self.stop is None:
            return True
        if key is None:  # in no order with others
            return False
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)


@dataclass(frozen=True)
class Largest:
    """The ``n`` keys with the largest values, or with the largest entry ``by`` of their values.

    Values that are no numbers are left out.
    """

    n: int
    by: str | None = None

    def select(self, items: Iterable[Item]) -> list[Item]:
        """The largest items, the largest first."""
        ranked = ((self._rank(item[1]), item) for item in items)
        known = ((rank, item) for rank, item in ranked if rank is not None)
        return [item for _, item in heapq.nlargest(self.n, known, key=lambda pair: pair[0])]

    def _rank(self, value: Any) -> float | int | None:
        if isinstance(value, Mapping):
            value = value.get(self._entry(value))
        elif self.by is not None:
            raise ConfigError(f"values have no entry {self.by!r}: they are plain; leave out by")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return None
        return value

    def _entry(self, value: Mapping[Any, Any]) -> Any:
        if self.by is not None:
            return self.by
        if len(value) > 1:
            raise ConfigError(f"by must name an entry of the values: {', '.join(map(str, value))}")
        return next(iter(value), None)


ScanFilter = KeyRange | Largest
