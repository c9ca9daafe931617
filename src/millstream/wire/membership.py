"""Which nodes belong to a run: the placement in force, joining, signs of life, failure reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import MillstreamError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.pickled_once import PickledOnce
from millstream.wire.request import Request

# -- to a node -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ping(PickledOnce, Request[NodeId]):
    """Asks a node for a sign of life."""


@dataclass(frozen=True)
class Stop(Request[None]):
    """Tells a node to end its process."""


@dataclass(frozen=True)
class Assign(PickledOnce, Request[None]):
    """The placement in force, from the coordinator.

    Owners are the same since version ``owners_since``: a node that missed the placements in between
    accepts feeds under them. By default since this one.
    """

    incarnation: int
    placement: Placement
    addresses: Mapping[NodeId, str]
    committed: Commit = NOTHING_COMMITTED
    owners_since: int | None = None


# -- to the coordinator --------------------------------------------------------------------


@dataclass(frozen=True)
class Heartbeat(Request[None]):
    """A node reports that it is alive; raises ``FencedError`` if it is not part of the run."""

    node: NodeId


@dataclass(frozen=True)
class FetchAssignment(Request[Assign]):
    """A node asks for the placement in force."""

    node: NodeId


@dataclass(frozen=True)
class ReportUnreachable(Request[None]):
    """A peer or a task could not reach a node, so many rounds in a row.

    Answered when the node answers the coordinator again, or was declared dead.
    """

    node: NodeId
    reporter: str
    rounds: int


@dataclass(frozen=True)
class ReportSlow(Request[None]):
    """A peer, or a task if there is no ``reporter``, waits for a node that answers its pings."""

    node: NodeId
    reporter: str | None
    reason: str


@dataclass(frozen=True)
class EnterStartBarrier(Request[int]):
    """A task is about to start a node; answered with the number of such tasks so far."""

    node: NodeId


@dataclass(frozen=True)
class ClaimLaunch(Request[str | None]):
    """A task asks whether to start a node on its executor.

    Answered with a ticket for the node, or with None if no node is wanted there.
    """

    executor: str
    host: str


@dataclass(frozen=True)
class Join(Request[Assign]):
    """A node that serves asks to become a member of the running workflow.

    A ticket admits one node; raises ``FencedError`` for any other. It is idempotent: a node whose
    answer was lost sends it again.
    """

    node: NodeId
    address: str
    pid: int
    domain: Domain
    ticket: str


class FencedError(MillstreamError):
    """A node is not, or no longer, part of the run."""
