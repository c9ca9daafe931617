"""Actions: the changes that policies suggest. The coordinator enacts or refuses them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from millstream.errors import ConfigError
from millstream.ring.ring import NodeId

Predicted: TypeAlias = Mapping[str, float]
"""What a policy expects of the run after its decision, by the names of a :class:`Summary`."""


@dataclass(frozen=True, kw_only=True)
class MoveSlots:
    """Give slots of one node to another.

    ``slots`` are runs in increasing order. ``reason`` is a sentence with the numbers that led to
    the action.
    """

    slots: tuple[range, ...]
    source: NodeId
    to: NodeId
    reason: str
    predicted: Predicted = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_words("MoveSlots", self.reason, self.predicted)
        if not isinstance(self.slots, tuple) or not self.slots:
            raise ConfigError(f"slots must be a tuple of at least one range, got {self.slots!r}")
        for run in self.slots:
            if not isinstance(run, range) or run.step != 1 or not run or run.start < 0:
                raise ConfigError(f"slots must be ranges that are not empty, step 1, got {run!r}")
        if any(one.stop > other.start for one, other in pairwise(self.slots)):
            raise ConfigError(f"slots must be in increasing order, got {self.slots}")
        if self.source == self.to:
            raise ConfigError(f"source and to must differ, got {self.source!r} for both")

    @property
    def count(self) -> int:
        """How many slots move."""
        return sum(map(len, self.slots))


@dataclass(frozen=True, kw_only=True)
class AddNodes:
    """Scale out: new nodes take their share of the load; ``relieve`` names those with too much."""

    count: int
    reason: str
    relieve: tuple[NodeId, ...] = ()
    predicted: Predicted = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_words("AddNodes", self.reason, self.predicted)
        if type(self.count) is not int or self.count < 1:
            raise ConfigError(f"count must be an integer of at least 1, got {self.count!r}")
        _check_nodes("relieve", self.relieve)


@dataclass(frozen=True, kw_only=True)
class RemoveNodes:
    """Scale in: the nodes are drained and released."""

    nodes: tuple[NodeId, ...]
    reason: str
    predicted: Predicted = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_words("RemoveNodes", self.reason, self.predicted)
        _check_nodes("nodes", self.nodes)
        if not self.nodes:
            raise ConfigError("nodes must name at least one node")


Action: TypeAlias = MoveSlots | AddNodes | RemoveNodes


def _check_nodes(option: str, nodes: object) -> None:
    if not isinstance(nodes, tuple) or not all(isinstance(node, str) for node in nodes):
        raise ConfigError(f"{option} must be a tuple of node ids, got {nodes!r}")
    if len(set(nodes)) != len(nodes):
        raise ConfigError(f"{option} must differ, got {nodes}")


def _check_words(action: str, reason: object, predicted: object) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigError(f"{action} needs a reason, a sentence for people, got {reason!r}")
    if not isinstance(predicted, Mapping) or not all(map(_is_number, predicted.values())):
        raise ConfigError(f"predicted must map names to finite numbers, got {predicted!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
