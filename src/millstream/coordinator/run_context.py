"""What the parts of the coordinator see of the run that they are parts of."""

from __future__ import annotations

from typing import Protocol

from millstream.coordinator.ledger import Ledger
from millstream.coordinator.roster import Roster
from millstream.wire.net import Net


class RunContext(Protocol):
    """The run as every part sees it; each part names what else it needs."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def ledger(self) -> Ledger: ...
