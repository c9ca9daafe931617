"""What the parts of the coordinator see of the run that they are parts of."""

from __future__ import annotations

from typing import Protocol

from millstream.coordinator.commit_modes import CommitMode
from millstream.coordinator.ledger import Ledger
from millstream.coordinator.roster import Roster
from millstream.coordinator.rpc import NodeRpc
from millstream.coordinator.wait_log import WaitLog
from millstream.elastic.events import EventLog
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.net import Net


class RunEndedError(MillstreamError):
    """A run was used that has ended."""


class RunContext(Protocol):
    """The run; implemented by the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def rpc(self) -> NodeRpc: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def commits(self) -> CommitMode: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def waits(self) -> WaitLog: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_over(self) -> bool:
        """Whether the run is closed, or has lost state beyond repair."""

    def enact_changes(self) -> None:
        """Enact new backups now, and pending moves if no epoch is under way."""

    def publish_placement(self) -> None:
        """Send the placement in force to all nodes."""

    def stop_removed(self, nodes: list[NodeId]) -> None:
        """Stop nodes that were declared dead and left the ring."""

    def report_unanswered(self, node: NodeId, problem: UnreachableError, what: str) -> None:
        """Have ``Fencing`` investigate a node that did not answer a call."""
