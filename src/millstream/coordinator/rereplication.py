"""Healing: the copies that are missing are made, in the background.

A pair of a donor and a receiver has one order at a time; orders do not wait for each other.
A donor copies for a moment and answers with what is left, so that an order lasts as long as it
makes progress, and no longer than its donor and receiver live. What fails is ordered again, from
another donor if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from millstream.coordinator.roster import Missing
from millstream.coordinator.rpc import ASK_TIMEOUT
from millstream.coordinator.run_context import RunContext
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.messages import CopyOrder, Receipts

log = logging.getLogger("millstream")

Pair = tuple[NodeId, NodeId]
# A donor answers after a second or so; a copy that is under way then may take its time.
_SUPPLY_TIMEOUT = 60.0
_AVOID_FOR = 30.0
_NO_EPOCH = (-1, 0, -1)


class Rereplicated(RunContext, Protocol):
    """What healing needs of the coordinator."""

    @property
    def is_over(self) -> bool: ...

    def ask(self, node: NodeId, action: str, body: object, timeout: float) -> Any: ...

    def ask_living(
        self, nodes: Iterable[NodeId], action: str, body: object, timeout: float
    ) -> dict[NodeId, Any]: ...


class Rereplication:
    """Has nodes copy slots to each other."""

    def __init__(
        self,
        healed: Rereplicated,
        lock: AbstractContextManager[Any],
        changing: AbstractContextManager[Any],
        tell: Callable[[], None],
    ) -> None:
        """``changing`` is held by whoever changes the placement, ``tell`` tells it to the nodes."""
        self._healed = healed
        self._lock = lock
        self._changing = changing
        self._tell = tell
        self._under_way: set[Pair] = set()
        self._avoid: dict[Pair, float] = {}
        self.spare_owners = True

    def heal(self) -> None:
        """Order the copies that are missing, unless they are on their way; does not wait."""
        for order in self._orders():
            self._healed.net.spawn(partial(self._fulfil, order), "heal")

    def _orders(self) -> list[Missing]:
        """The orders to be given now; each is under way from here on."""
        healed, now = self._healed, self._healed.net.now()
        with self._lock:
            if healed.is_over:
                return []
            self._avoid = {p: t for p, t in self._avoid.items() if now - t < _AVOID_FOR}
            missing = healed.roster.missing(spare_owners=self.spare_owners, avoid=self._avoid)
            chosen = [o for o in missing if (o.donor, o.to) not in self._under_way]
            self._under_way.update((order.donor, order.to) for order in chosen)
            return chosen

    def _fulfil(self, order: Missing) -> None:
        """Have a donor copy slots to a receiver, a few at a time."""
        pair = (order.donor, order.to)
        done = False
        try:
            done = self._supplied(order)
        except MillstreamError as problem:
            log.info("copying slots from %s to %s: %s", order.donor[:8], order.to[:8], problem)
        finally:
            with self._lock:
                self._under_way.discard(pair)
                if not done:
                    self._avoid[pair] = self._healed.net.now()
        self.ask_reach([order.to])
        with self._changing, self._lock:
            minted = self._healed.roster.settle(between_epochs=False)
        if minted:
            self._tell()

    def _supplied(self, order: Missing) -> bool:
        """Order slot after slot, while there is progress; whether all were copied."""
        healed, left = self._healed, order.slots
        while left and order.to in healed.roster.domains and not healed.is_over:
            with self._lock:
                committed, incarnation = healed.ledger.committed, healed.ledger.incarnation
            what = CopyOrder(incarnation, order.to, left, committed)
            answers = healed.ask_living([order.donor], "supply", what, _SUPPLY_TIMEOUT)
            answer = answers.get(order.donor)
            if isinstance(answer, Exception):
                raise answer
            if answer is None or answer == left:
                return False  # the donor is gone, or gets nowhere
            left = answer
        return not left

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
