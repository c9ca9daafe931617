"""Fragments of windowed state: the changes of one or several epochs to the panes of some slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, common
from millstream.ring.strides import AT_ONCE, strides
from millstream.state.panes.keys import Ids
from millstream.state.panes.sliding import Slider
from millstream.state.panes.tables import Algebra
from millstream.state.pickling import canonical, dumps, unpickled

A = TypeVar("A")
DirtyPanes = dict[int, npt.NDArray[np.int32]]
"""The slots in which panes, by their start, have changed since early results were given."""


@dataclass(frozen=True)
class Part(Generic[A]):
    """Rows of some keys; ``ids`` are valid on the node that made it, in one generation."""

    keys: list[Any]
    slots: npt.NDArray[np.int32]
    rows: A
    ids: tuple[object, Ids] | None = None

    def chosen(self, algebra: Algebra[A], mask: npt.NDArray[np.bool_]) -> Part[A] | None:
        """Some of the rows; None if there are none."""
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        if not len(at):
            return None
        return Part(
            list(map(self.keys.__getitem__, at.tolist())),
            self.slots[at],
            algebra.take(self.rows, at),
            None if self.ids is None else (self.ids[0], self.ids[1][at]),
        )


@dataclass(frozen=True)
class Stacks(Generic[A]):
    """The two stacks of each window of a range of slots; valid on the node that made them."""

    slots: range
    generation: object
    sliders: tuple[Slider[A] | None, ...]


@dataclass
class PaneFragment(Generic[A]):
    """The changes of one or several epochs to the panes of some slots.

    Aggregated rows in ``panes`` replace those of the same key; ``raw`` rows were added by an epoch
    without being aggregated. Raw rows of the slots in ``compacted`` were aggregated; of the slots
    in ``gone``, panes that start before a time have expired. With early results, ``dirty`` lists
    the panes of some slots that have changed since the last ones.
    """

    panes: dict[int, Part[A]] = field(default_factory=dict)
    raw: dict[tuple[int, int], Part[A]] = field(default_factory=dict)
    compacted: list[range] = field(default_factory=list)
    gone: list[tuple[range, int]] = field(default_factory=list)
    dirty: list[tuple[range, DirtyPanes]] = field(default_factory=list)
    stacks: Stacks[A] | None = None

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return bool(self.panes or self.raw or self.compacted or self.gone or self.dirty)

    def part(self, algebra: Algebra[A], slots: range) -> PaneFragment[A]:
        """Its changes to some slots."""

        def within(part: Part[A]) -> Part[A] | None:
            mask = (part.slots >= slots.start) & (part.slots < slots.stop)
            return part.chosen(algebra, mask)

        compacted = [common(one, slots) for one in self.compacted]
        gone = [(common(one, slots), before) for one, before in self.gone]
        dirty = [(common(one, slots), dirty_within(of_run, slots)) for one, of_run in self.dirty]
        return PaneFragment(
            _filtered(self.panes, within),
            _filtered(self.raw, within),
            [cut for cut in compacted if cut],
            [(cut, before) for cut, before in gone if cut],
            [(cut, of_run) for cut, of_run in dirty if cut],
            self.stacks if self.stacks is not None and self.stacks.slots == slots else None,
        )


def dirty_within(dirty: DirtyPanes, slots: range) -> DirtyPanes:
    """The dirty panes of some slots."""
    found = {at: s[(s >= slots.start) & (s < slots.stop)] for at, s in dirty.items()}
    return {at: s for at, s in found.items() if len(s)}


def same_dirty(left: DirtyPanes, right: DirtyPanes) -> bool:
    """Whether the same slots of the same panes are dirty."""
    return left.keys() == right.keys() and all(np.array_equal(left[at], right[at]) for at in left)


def _filtered(
    parts: dict[Any, Part[A]], choose: Callable[[Part[A]], Part[A] | None]
) -> dict[Any, Part[A]]:
    found = {at: choose(part) for at, part in parts.items()}
    return {at: part for at, part in found.items() if part is not None}


def masked(
    algebra: Algebra[A], parts: dict[Any, Part[A]], slots: SlotMask | None
) -> dict[Any, Part[A]]:
    """The parts, with rows of the slots of a mask only."""
    if slots is None:
        return parts
    return _filtered(parts, lambda part: part.chosen(algebra, slots[part.slots]))


def encode_panes(fragment: PaneFragment[A], algebra: Algebra[A]) -> bytes:
    """Serialise a fragment, as a sequence of pickles, without stacks."""
    rest = (fragment.compacted, fragment.gone, fragment.dirty)
    encoded = [dumps(([], [], *rest))]
    both: tuple[dict[Any, Part[A]], dict[Any, Part[A]]] = (fragment.panes, fragment.raw)
    for number, parts in enumerate(both):
        for at, part in parts.items():
            for keys, slots, rows in _cut(part, algebra):
                found: tuple[list[Any], list[Any]] = ([], [])
                found[number].append((at, keys, slots, algebra.pack(rows)))
                encoded.append(dumps((*found, [], [], [])))
    return b"".join(encoded)


def _cut(part: Part[A], algebra: Algebra[A]) -> Iterator[tuple[list[Any], Any, A]]:
    if len(part.keys) <= AT_ONCE:
        yield part.keys, part.slots, part.rows
        return
    for at in strides(len(part.keys)):
        rows = algebra.take(part.rows, np.arange(at.start, at.stop))
        yield part.keys[at], part.slots[at], rows


def decode_panes(data: Any, algebra: Algebra[A]) -> PaneFragment[A]:
    """Read what ``encode_panes`` wrote."""
    decoded: PaneFragment[A] = PaneFragment()
    panes: dict[Any, list[Part[A]]] = {}
    raw: dict[Any, list[Part[A]]] = {}
    for *found, compacted, gone, dirty in unpickled(data):
        decoded.compacted += compacted
        decoded.gone += gone
        decoded.dirty += dirty
        for parts, read in zip((panes, raw), found, strict=True):
            for at, keys, slots, rows in read:
                part = Part(canonical(keys), slots, algebra.unpack(rows))
                parts.setdefault(at, []).append(part)
    decoded.panes = {at: _joined(parts, algebra) for at, parts in panes.items()}
    decoded.raw = {at: _joined(parts, algebra) for at, parts in raw.items()}
    return decoded


def _joined(parts: list[Part[A]], algebra: Algebra[A]) -> Part[A]:
    if len(parts) == 1:
        return parts[0]
    return Part(
        list(chain.from_iterable(part.keys for part in parts)),
        np.concatenate([part.slots for part in parts]),
        algebra.concat([part.rows for part in parts]),
    )
