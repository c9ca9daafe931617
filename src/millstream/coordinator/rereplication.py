"""Re-replication: copies that are missing are made in the background.

A pair of a donor and a receiver has one order at a time; orders do not wait for each other.
A donor copies for about a second and answers with what remains, so that an order lasts as long as
it makes progress, and ends with its donor or receiver. What fails is ordered again, from another
donor if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from millstream.coordinator.roster import MissingCopy
from millstream.coordinator.run_context import RunContext
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.receipts import CollectReceipts, Receipts
from millstream.wire.replication import CopySlots

log = logging.getLogger("millstream")

Pair = tuple[NodeId, NodeId]
# A donor answers after a second or so; a copy that is under way then may take longer.
_COPY_TIMEOUT = 60.0
_AVOID_SECONDS = 30.0
_REACH_ONLY = CollectReceipts(epoch=-1, try_=0, ring=-1)


class Rereplication:
    """Has nodes copy slots to each other."""

    def __init__(self, run: RunContext, lock: AbstractContextManager[Any]) -> None:
        self._run = run
        self._lock = lock
        self._under_way: set[Pair] = set()
        self._avoid: dict[Pair, float] = {}
        self.spare_owners = True

    def begin(self) -> None:
        """Order the copies that are missing, unless they are under way; does not wait."""
        for order in self._orders():
            self._run.net.spawn(partial(self._fulfil, order), "rereplicate")

    def _orders(self) -> list[MissingCopy]:
        """The orders to be given now; each is under way from here on."""
        run, now = self._run, self._run.net.now()
        with self._lock:
            if run.is_over:
                return []
            self._avoid = {p: t for p, t in self._avoid.items() if now - t < _AVOID_SECONDS}
            missing = run.roster.missing_copies(spare_owners=self.spare_owners, avoid=self._avoid)
            orders = [o for o in missing if (o.donor, o.to) not in self._under_way]
            self._under_way.update((order.donor, order.to) for order in orders)
            return orders

    def _fulfil(self, order: MissingCopy) -> None:
        """Have a donor copy slots to a receiver, a few at a time."""
        pair = (order.donor, order.to)
        done = False
        try:
            done = self._copy(order)
        except MillstreamError as problem:
            log.info("copying slots from %s to %s: %s", order.donor[:8], order.to[:8], problem)
        finally:
            with self._lock:
                self._under_way.discard(pair)
                if not done:
                    self._avoid[pair] = self._run.net.now()
        self.update_reach([order.to])
        self._run.enact_changes()

    def _copy(self, order: MissingCopy) -> bool:
        """Order copies while there is progress; return whether all slots were copied."""
        run, remaining = self._run, order.slots
        while remaining and order.to in run.roster.domains and not run.is_over:
            with self._lock:
                committed, incarnation = run.ledger.committed, run.ledger.incarnation
            request = CopySlots(incarnation, order.to, remaining, committed)
            answers = run.rpc.call_living([order.donor], run.roster.domains, request, _COPY_TIMEOUT)
            answer = answers.get(order.donor)
            if isinstance(answer, Exception):
                raise answer
            if answer is None or answer == remaining:
                return False  # the donor is dead, or makes no progress
            remaining = answer
        return not remaining

    def update_reach(self, nodes: Iterable[NodeId]) -> None:
        """Ask nodes how far their copies are: they may be complete since the last commit."""
        run = self._run
        for node, answer in run.rpc.call_all(nodes, _REACH_ONLY).items():
            if isinstance(answer, Receipts):
                with self._lock:
                    run.roster.report_reach(node, answer.reach, run.ledger.committed.epoch)
