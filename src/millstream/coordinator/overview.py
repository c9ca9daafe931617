"""The nodes of a run and their slots at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain


@dataclass(frozen=True)
class Overview:
    """Who owns and copies what; ``durable`` is the newest epoch in the store, if there is one."""

    placement: Placement
    domains: Mapping[NodeId, Domain]
    in_sync: Mapping[NodeId, SlotMask]
    lost: tuple[NodeId, ...]
    committed: int
    incarnation: int
    durable: int | None
    fenced_alive: tuple[NodeId, ...]
    slow: tuple[NodeId, ...]
    waits: tuple[str, ...]
