"""The nodes of a run and their slots at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain

Role = Literal["active", "standby", "leaving"]
"""What a member is for: to hold slots, to wait until it is needed, or to give up what it holds."""


@dataclass(frozen=True)
class Overview:
    """Who owns and copies what; ``durable`` is the newest epoch in the store, if there is one.

    ``target`` is how many nodes shall be active, ``pending`` how many slots have not reached the
    owner that they shall have.
    """

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
    roles: Mapping[NodeId, Role]
    pids: Mapping[NodeId, int]
    target: int
    pending: int
