"""The nodes of a run, the ring in force, and the keys that weigh most on it."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.contract.terms import Role


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node: its own slots, the slots that it has copies of, and its load.

    ``queue`` is how many seconds of feeds waited for it, per epoch. A ``slow`` node answers pings,
    but not calls in time. Load is None before the first epoch of the node.
    """

    id: str
    host: str
    executor: str
    zone: str
    pid: int
    role: Role
    is_slow: bool
    slots: int
    copies: int
    in_sync: int
    cpu: float | None = None
    queue: float | None = None
    waiting: float | None = None
    rows: float | None = None
    reduce_seconds: float | None = None
    memory: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """Where an arc of the ring begins, and the node that owns it up to the next token."""

    slot: int
    node: str


@dataclass(frozen=True, kw_only=True)
class ArcView:
    """Adjacent slots with one owner and the same copies; arcs do not wrap."""

    start: int
    stop: int
    owner: str
    copies: list[str]


@dataclass(frozen=True, kw_only=True)
class PendingMove:
    """Adjacent slots that shall have another owner; ``in_sync`` of them are copied to it."""

    start: int
    stop: int
    source: str
    to: str
    in_sync: int


@dataclass(frozen=True, kw_only=True)
class RingView:
    """The ring in force, and what shall change."""

    version: int
    slots: int
    replicas: int
    tokens: list[TokenView]
    arcs: list[ArcView]
    moves: list[PendingMove]
    under_replicated: int


@dataclass(frozen=True, kw_only=True)
class HotKeyView:
    """A key with a large share of a job's rows."""

    job: str
    key: str
    slot: int
    owner: str
    share: float
