"""The operations of every form of state: apply fragments, make them, and read.

A *fragment* holds the changes of one or several epochs to some slots, with absolute values. It
never changes once it is reduced. Encoded, it is the delta that other copies of its slots apply.

The forms are :class:`~millstream.state.keyed.KeyedState` (which may spill),
:class:`~millstream.state.columns.ColumnState`, and, for windows,
:class:`~millstream.state.panes.state.PaneState`, :class:`~millstream.state.panes.rows.RowState` and
:class:`~millstream.state.panes.joined.JoinState`. Users read results, not accumulators: a state
that holds accumulators is made with the function that turns them into results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask

F = TypeVar("F")


class State(Protocol[F]):
    """The committed state of one job on one node: of the slots that it owns, and of copies."""

    @property
    def step(self) -> int:
        """How many changed keys are applied within a few milliseconds."""

    def apply(self, fragment: F, slots: SlotMask | None = None) -> None:
        """Apply the fragment of a committed epoch, or its part for some slots.

        Values are absolute: a merged fragment may be applied to a state that has a part of it.
        """

    def prepare(self, fragment: F, parts: int) -> F:
        """The same fragment, so that applying it, in a number of parts, is fast.

        Users may read the state meanwhile; nobody else may change it, or reduce.
        """

    def encode(self, fragment: F) -> bytes:
        """Serialise a fragment."""

    def decode(self, data: bytes | pa.Buffer) -> F:
        """Read what ``encode`` wrote; only of an authenticated peer, or of the store."""

    def part(self, fragment: F, slots: range) -> F:
        """A fragment's changes to some slots; it may name forgotten keys of others."""

    def merge(self, fragments: Sequence[F]) -> F:
        """Merge fragments of consecutive epochs, oldest first, into one with the same effect."""

    def snapshot(self, slots: range) -> F:
        """All rows of some slots, as a fragment that makes empty slots equal to them."""

    def drop(self, slots: SlotMask) -> None:
        """Remove all rows of some slots."""

    def get(self, slot: int, key: Any) -> Any:
        """What a user reads for a key, or None."""

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The keys of some slots with what a user reads for each."""

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots."""

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order."""
