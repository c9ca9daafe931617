"""Changes of a run: requests, and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from millstream.api.contract.overview import RunView
from millstream.api.contract.terms import Name


@dataclass(frozen=True, kw_only=True)
class SlotRange:
    """Slots from ``start`` to before ``stop``."""

    start: Annotated[int, Meta(ge=0, le=65_536)]
    stop: Annotated[int, Meta(ge=0, le=65_536)]


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """Sets how many nodes shall be active."""

    nodes: Annotated[int, Meta(ge=1, le=65_536)]
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class RebalanceRequest:
    """Gives every node a fair share of the load."""

    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class DrainRequest:
    """Lets a node give up its slots and leave."""

    node: Name
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class MoveRequest:
    """Makes a node the owner of slots."""

    slots: Annotated[list[SlotRange], Meta(min_length=1, max_length=65_536)]
    to: Name
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Finishes the epoch under way and ends the run."""

    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class SlotTransfer:
    """Slots that a change moves; ``bytes`` of state is an estimate."""

    source: str
    to: str
    slots: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ChangePreview:
    """What a change does: ``text`` for people; nodes that do not exist yet are called new-1…"""

    text: str
    nodes_before: int
    nodes_after: int
    joining: int
    leaving: list[str]
    transfers: list[SlotTransfer]
    slots: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """The answer to a change: what it does, and the run when it was accepted.

    With ``dry_run`` nothing was changed.
    """

    dry_run: bool
    preview: ChangePreview
    run: RunView
