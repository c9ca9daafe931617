"""Healing: the copies that are missing are made, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from millstream.coordinator.asking import ASK_TIMEOUT
from millstream.coordinator.ledger import Ledger
from millstream.coordinator.roster import Roster
from millstream.node.messages import CopyOrder, Receipts
from millstream.ring.ring import NodeId
from millstream.wire.net import Net

_SUPPLY_TIMEOUT = 300.0
_NO_EPOCH = (-1, 0, -1)


class Healed(Protocol):
    """What healing needs of the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def ledger(self) -> Ledger: ...

    def ask(self, node: NodeId, action: str, body: object, timeout: float) -> Any: ...


class Healing:
    """Has nodes copy slots to each other, one round at a time."""

    def __init__(
        self,
        healed: Healed,
        lock: AbstractContextManager[Any],
        changing: AbstractContextManager[Any],
        tell: Callable[[], None],
    ) -> None:
        """``changing`` is held by whoever changes the placement, ``tell`` tells it to the nodes."""
        self._healed = healed
        self._lock = lock
        self._changing = changing
        self._tell = tell
        self._at_work = False
        self.spare_owners = True

    def heal(self) -> None:
        """Make the copies that are missing; what fails is tried again later."""
        healed = self._healed
        with self._lock:
            if self._at_work:
                return
            self._at_work = True
            orders = healed.roster.missing(spare_owners=self.spare_owners)
            committed, incarnation = healed.ledger.committed, healed.ledger.incarnation
        healed.net.gather(
            [
                partial(
                    healed.ask,
                    order.donor,
                    "supply",
                    CopyOrder(incarnation, order.to, order.slots, committed),
                    _SUPPLY_TIMEOUT,
                )
                for order in orders
            ]
        )
        self.ask_reach(dict.fromkeys(order.to for order in orders))
        with self._changing, self._lock:
            self._at_work = False
            minted = healed.roster.settle(between_epochs=False)
        if minted:
            self._tell()

    def ask_reach(self, nodes: Iterable[NodeId]) -> None:
        """Ask nodes how far their copies are: they may be complete since the last commit."""
        healed, known = self._healed, list(nodes)
        answers = healed.net.gather(
            [partial(healed.ask, node, "receipts", _NO_EPOCH, ASK_TIMEOUT) for node in known]
        )
        for node, answer in zip(known, answers, strict=True):
            if isinstance(answer, Receipts):
                with self._lock:
                    healed.roster.reached(node, answer.reach, healed.ledger.committed.epoch)
