"""The ring: the owner of each slot, in one version.

Keys are hashed to slots in :mod:`millstream.ring.hashing`. When the ring changes, and how state is
copied, is decided by the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NewType

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError, MillstreamError

NodeId = NewType("NodeId", str)


class RingError(MillstreamError):
    """A change or a look-up that is not possible with this ring."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"


@dataclass(frozen=True)
class Ring:
    """The order of nodes by token, in one version.

    A token is the slot where an arc begins; the arc reaches clockwise up to the next token, and
    from the last token around to the first. A node that took over slots may have several tokens;
    its place in the order is its first.
    """

    version: int
    slots: int
    tokens: tuple[tuple[int, NodeId], ...]

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ConfigError(f"version must be at least 0, got {self.version}")
        _check_count("slots", self.slots)
        positions = [position for position, _ in self.tokens]
        if not positions:
            raise ConfigError("a ring needs at least one token")
        if positions != sorted(set(positions)):
            raise ConfigError(f"tokens must be in increasing order, got {positions}")
        if positions[0] < 0 or positions[-1] >= self.slots:
            raise ConfigError(f"tokens must be slots from 0 to {self.slots - 1}, got {positions}")

    @classmethod
    def even(cls, nodes: Sequence[NodeId], slots: int = 4096) -> Ring:
        """Return the first ring of these nodes: equal contiguous arcs, in the given order."""
        if len(set(nodes)) != len(nodes):
            raise ConfigError(f"nodes must differ, got {list(nodes)}")
        if not 1 <= len(nodes) <= slots:
            raise ConfigError(f"there must be 1 to {slots} nodes (slots), got {len(nodes)}")
        arcs = partition_slots(slots, len(nodes))
        tokens = ((arc.start, node) for arc, node in zip(arcs, nodes, strict=True))
        return cls(0, slots, tuple(tokens))

    @classmethod
    def of_table(
        cls, version: int, nodes: Sequence[NodeId], owners: npt.NDArray[np.integer[Any]]
    ) -> Ring:
        """Return the ring in which each slot has the owner of that index in ``nodes``."""
        # An arc begins where the owner differs from the slot before, around the wrap.
        starts = np.flatnonzero(owners != np.roll(owners, 1)).tolist() or [0]
        numbers = owners[starts].tolist()
        tokens = tuple((at, nodes[number]) for at, number in zip(starts, numbers, strict=True))
        return cls(version, len(owners), tokens)

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes clockwise, by first token; owner indexes point into this."""
        return tuple(dict.fromkeys(node for _, node in self.tokens))

    @cached_property
    def table(self) -> npt.NDArray[np.int32]:
        """The index in ``nodes`` of each slot's owner; read-only."""
        index = {node: number for number, node in enumerate(self.nodes)}
        numbers = [index[node] for _, node in self.tokens]
        starts = [position for position, _ in self.tokens]
        # Slots before the first token belong to the last arc.
        arcs = np.array([numbers[-1], *numbers], np.int32)
        table = np.repeat(arcs, np.diff([0, *starts, self.slots]))
        table.setflags(write=False)
        return table

    def owner(self, slot: int) -> NodeId:
        """Return the node that owns the slot."""
        if not 0 <= slot < self.slots:
            raise RingError(f"there is no slot {slot}", f"slots are 0 to {self.slots - 1}")
        return self.nodes[int(self.table[slot])]

    def slots_of(self, node: NodeId) -> npt.NDArray[np.int32]:
        """Return the slots of the node, in increasing order."""
        return np.flatnonzero(self.table == self._index(node)).astype(np.int32)

    def successor(self, node: NodeId) -> NodeId:
        """Return the next node clockwise; the node itself if it is alone."""
        return self.nodes[(self._index(node) + 1) % len(self.nodes)]

    def neighbours(self, node: NodeId, n: int) -> tuple[NodeId, ...]:
        """Return the next nodes clockwise, nearest first; fewer than n if the ring is small."""
        if n < 0:
            raise ConfigError(f"n must be at least 0, got {n}")
        index = self._index(node)
        return (self.nodes[index + 1 :] + self.nodes[:index])[:n]

    def with_node(self, node: NodeId, *, token: int | None = None) -> Ring:
        """Return the ring after the node has joined.

        It takes the slots from its token up to the next one; without a token, the second half of
        the longest arc.
        """
        if node in self.nodes:
            raise RingError(f"node {node!r} is in the ring", "join a node under a new id")
        position = self._middle_of_longest_arc() if token is None else token
        if not 0 <= position < self.slots:
            raise ConfigError(f"token must be a slot from 0 to {self.slots - 1}, got {token}")
        if any(position == taken for taken, _ in self.tokens):
            raise RingError(f"slot {position} is a token already", "choose another token")
        joined = (position, node)
        return Ring(self.version + 1, self.slots, tuple(sorted([*self.tokens, joined])))

    def without(self, node: NodeId) -> Ring:
        """Return the ring after the node has left or died; its successor takes its slots.

        The successor, because it is the first backup and has the copies.
        """
        if len(self.nodes) == 1:
            self._index(node)
            raise RingError(f"node {node!r} is the last in the ring", "join another node first")
        return self.moved(self.slots_of(node), self.successor(node))

    def moved(self, slots: Iterable[int] | npt.NDArray[np.integer[Any]], to: NodeId) -> Ring:
        """Return the ring after the node has taken over the slots, and no others."""
        taken = np.asarray(slots if isinstance(slots, np.ndarray) else list(slots), np.int64)
        nodes = list(dict.fromkeys([*self.nodes, to]))
        table = self.table.copy()
        table[self._checked(taken)] = nodes.index(to)
        return Ring.of_table(self.version + 1, nodes, table)

    def at(self, version: int) -> Ring:
        """Return the same ring in another version."""
        same = Ring(version, self.slots, self.tokens)
        same.__dict__.update(nodes=self.nodes, table=self.table)
        return same

    def __reduce__(self) -> tuple[type[Ring], tuple[object, ...]]:
        # Rings travel with tasks: leave out the cached table, which is 16 KB and quickly rebuilt.
        return Ring, (self.version, self.slots, self.tokens)

    def _index(self, node: NodeId) -> int:
        try:
            return self.nodes.index(node)
        except ValueError:
            known = ", ".join(self.nodes)
            raise RingError(f"node {node!r} is not in the ring", f"it has {known}") from None

    def _checked(self, slots: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
        if slots.size and not 0 <= int(slots.min()) <= int(slots.max()) < self.slots:
            what = f"there are no slots {slots.min()} to {slots.max()}"
            raise RingError(what, f"slots are 0 to {self.slots - 1}")
        return slots

    def _middle_of_longest_arc(self) -> int:
        starts = [position for position, _ in self.tokens]
        ends = [*starts[1:], starts[0] + self.slots]
        length, start = max((end - start, -start) for start, end in zip(starts, ends, strict=True))
        if length < 2:
            raise RingError("every node owns single slots", "start the workflow with more slots")
        return (-start + (length + 1) // 2) % self.slots


def partition_slots(slots: int, partitions: int) -> list[range]:
    """Cut slots into equal ranges: i has ``[i*slots//partitions, (i+1)*slots//partitions)``.

    With more partitions than slots, some are empty.
    """
    _check_count("slots", slots)
    _check_count("partitions", partitions)
    bounds = [index * slots // partitions for index in range(partitions + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def _check_count(option: str, count: int) -> None:
    if not 1 <= count < 2**31:
        raise ConfigError(f"{option} must be between 1 and 2**31 - 1, got {count}")
