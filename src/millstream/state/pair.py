"""Two states of one job side by side, such as the windows of its keys and entries of its user.

A fragment of the pair is a pair of fragments; all that holds for one state holds for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask
from millstream.state.protocol import State

A = TypeVar("A")
B = TypeVar("B")
_LENGTH = 8


@dataclass(frozen=True)
class PairFragment(Generic[A, B]):
    """The changes of one or several epochs to both states."""

    first: A
    second: B

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return bool(self.first) or bool(self.second)


class PairState(Generic[A, B]):
    """Both states; users read them under two names."""

    def __init__(self, first: State[A], second: State[B], names: tuple[str, str]) -> None:
        self.first = first
        self.second = second
        self._names = names

    @property
    def step(self) -> int:
        """As of the state that is applied in larger steps: each may cost it a whole copy."""
        return max(self.first.step, self.second.step)

    def apply(self, fragment: PairFragment[A, B], slots: SlotMask | None = None) -> None:
        """Apply the fragments of a committed epoch, or their parts for some slots."""
        self.first.apply(fragment.first, slots)
        self.second.apply(fragment.second, slots)

    def prepare(self, fragment: PairFragment[A, B], parts: int) -> PairFragment[A, B]:
        """The same fragment, so that applying it, in a number of parts, is fast."""
        return PairFragment(
            self.first.prepare(fragment.first, parts), self.second.prepare(fragment.second, parts)
        )

    def encode(self, fragment: PairFragment[A, B]) -> bytes:
        """Serialise a fragment: the length of the first, and both."""
        first = self.first.encode(fragment.first)
        return len(first).to_bytes(_LENGTH, "little") + first + self.second.encode(fragment.second)

    def decode(self, data: bytes | pa.Buffer) -> PairFragment[A, B]:
        """Read what ``encode`` wrote."""
        return decode_pair(data, self.first.decode, self.second.decode)

    def part(self, fragment: PairFragment[A, B], slots: range) -> PairFragment[A, B]:
        """A fragment's changes to some slots."""
        return PairFragment(
            self.first.part(fragment.first, slots), self.second.part(fragment.second, slots)
        )

    def merge(self, fragments: Sequence[PairFragment[A, B]]) -> PairFragment[A, B]:
        """Merge fragments of consecutive epochs, oldest first."""
        return PairFragment(
            self.first.merge([fragment.first for fragment in fragments]),
            self.second.merge([fragment.second for fragment in fragments]),
        )

    def snapshot(self, slots: range) -> PairFragment[A, B]:
        """All rows of some slots, as a fragment that makes empty slots equal to them."""
        return PairFragment(self.first.snapshot(slots), self.second.snapshot(slots))

    def drop(self, slots: SlotMask) -> None:
        """Remove all rows of some slots."""
        self.first.drop(slots)
        self.second.drop(slots)

    def get(self, slot: int, key: Any) -> dict[str, Any] | None:
        """What users read for a key: both states by name, without one that it has not."""
        return _named(self._names, self.first.get(slot, key), self.second.get(slot, key))

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, dict[str, Any] | None]]:
        """The keys of some slots with what users read for each."""
        return by_name(self._names, self.first.items(slots), self.second.items(slots))

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots, at least: a key may be in one state only."""
        return max(self.first.count(slots), self.second.count(slots))

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order; at least so many."""
        return np.maximum(self.first.counts(slots), self.second.counts(slots))


def decode_pair(
    data: bytes | pa.Buffer, first: Callable[[pa.Buffer], A], second: Callable[[pa.Buffer], B]
) -> PairFragment[A, B]:
    """Read an encoded pair with the readers of both states."""
    buffer = pa.py_buffer(data)
    length = int.from_bytes(buffer.slice(0, _LENGTH).to_pybytes(), "little")
    return PairFragment(
        first(buffer.slice(_LENGTH, length)), second(buffer.slice(_LENGTH + length))
    )


def by_name(
    names: tuple[str, str], first: Iterable[tuple[Any, Any]], second: Iterable[tuple[Any, Any]]
) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """The keys of both states, each with what it has in them by name."""
    others = dict(second)
    for key, value in first:
        yield key, _named(names, value, others.pop(key, None))
    for key, value in others.items():
        yield key, _named(names, None, value)


def _named(names: tuple[str, str], first: Any, second: Any) -> dict[str, Any] | None:
    found = zip(names, (first, second), strict=True)
    return {name: value for name, value in found if value is not None} or None
