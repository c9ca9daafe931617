"""Re-replication: copies that are missing are made in the background.

A pair of a donor and a receiver has one order at a time; orders do not wait for each other.
A donor copies for a tenth of a second at most, or until a feed begins, and answers with what
remains, so that an order lasts as long as it makes progress, and ends with its donor or receiver.
Copies take processors from epochs: the next part is copied between two epochs, and is small, as an
epoch may begin meanwhile; or, if they follow each other closely, after a pause. What fails is
ordered again, from another donor if there is one. Many orders end at about the same time: what came
of them is asked for and enacted together.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from millstream.coordinator.roster import MissingCopy, Pair
from millstream.coordinator.run_context import RunContext
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.receipts import FetchReach
from millstream.wire.replication import CopySlots
from millstream.wire.timeouts import RETRY_PAUSE

log = logging.getLogger("millstream")

# A donor answers soon; a copy that is under way then may take longer.
_COPY_TIMEOUT = 60.0
_BETWEEN_EPOCHS, _WITHIN_EPOCHS = 0.03, 0.1  # seconds of copying at a time
_LONGEST_PAUSE = 0.3
_AVOID_SECONDS = 30.0
_HOPELESS = 20
_SETTLE_SECONDS = 0.5


class Rereplication:
    """Has nodes copy slots to each other."""

    def __init__(self, run: RunContext, lock: AbstractContextManager[Any]) -> None:
        self._run = run
        self._lock = lock
        self._under_way: set[Pair] = set()
        self._copied: set[NodeId] = set()  # receivers of orders that have ended
        self._is_settling = False
        self._avoid: dict[Pair, float] = {}
        self._failures: Counter[NodeId] = Counter()  # in a row, of copies to a node
        self.spare_owners = True

    def begin(self) -> None:
        """Order the copies that are missing, unless they are under way; does not wait."""
        orders = self._orders()
        if orders:
            self._run.net.spawn(partial(self._begin_all, orders), "rereplicate")

    def _begin_all(self, orders: list[MissingCopy]) -> None:
        self._await_end_of_epoch()  # once for all of them: there may be thousands
        for order in orders:
            self._run.net.spawn(partial(self._fulfil, order), "rereplicate")

    def _orders(self) -> list[MissingCopy]:
        """The orders to be given now; each is under way from here on."""
        run, now = self._run, self._run.net.now()
        with self._lock:
            if run.is_over:
                return []
            living = run.roster.domains
            # A call to a dead donor may still wait for its answer.
            self._under_way = {(d, to) for d, to in self._under_way if d in living and to in living}
            self._avoid = {p: t for p, t in self._avoid.items() if now - t < _AVOID_SECONDS}
            orders = run.roster.missing_copies(
                spare_owners=self.spare_owners, avoid=self._avoid, without=self._under_way
            )
            self._under_way.update((order.donor, order.to) for order in orders)
            return orders

    def _fulfil(self, order: MissingCopy) -> None:
        """Have a donor copy slots to a receiver, a few at a time."""
        pair = (order.donor, order.to)
        done = False
        try:
            done = self._copy(order)
            self._failures.pop(order.to, None)
        except MillstreamError as problem:
            log.info("copying slots from %s to %s: %s", order.donor[:8], order.to[:8], problem)
            self._add_failure(order.to, problem)
        finally:
            with self._lock:
                self._under_way.discard(pair)
                self._copied.add(order.to)
                if not done:
                    self._avoid[pair] = self._run.net.now()
        self._settle()

    def _add_failure(self, node: NodeId, problem: MillstreamError) -> None:
        """Report a node that cannot take copies, and abandon the moves to it."""
        with self._lock:
            self._failures[node] += 1
            hopeless = self._failures[node] == _HOPELESS and node in self._run.roster.domains
            if hopeless:
                self._run.roster.give_up(node)
        if hopeless:
            text = f"node {node[:8]} cannot take copies, and gets no more slots: {problem}"
            log.warning("%s", text)
            self._run.events.add("copy-failed", text, {"node": node})

    def _copy(self, order: MissingCopy) -> bool:
        """Order copies while there is progress; return whether all slots were copied."""
        run, remaining = self._run, order.slots
        pair = (order.donor, order.to)
        while remaining and pair in self._under_way and not run.is_over:
            with self._lock:
                committed, incarnation = run.ledger.committed, run.ledger.incarnation
                seconds = _BETWEEN_EPOCHS if run.ledger.record is None else _WITHIN_EPOCHS
            request = CopySlots(incarnation, order.to, remaining, committed, seconds)
            answer = run.rpc.call(order.donor, request, _COPY_TIMEOUT)
            if answer == remaining:
                return False  # the donor makes no progress
            remaining = answer
            if remaining:
                self._await_end_of_epoch()
        return not remaining

    def _await_end_of_epoch(self) -> None:
        """Wait until no epoch is under way, but not for long."""
        run = self._run
        until, pause = run.net.now() + _LONGEST_PAUSE, RETRY_PAUSE
        while run.ledger.record is not None and not run.is_over:
            left = until - run.net.now()
            if left <= 0:
                return
            run.net.sleep(min(pause, left))
            pause *= 2

    def _settle(self) -> None:
        """See what came of orders, and enact it, together with those that end soon."""
        run = self._run
        with self._lock:
            if self._is_settling:
                return
            self._is_settling = True
        try:
            until = run.net.now() + _SETTLE_SECONDS
            while self._under_way and run.net.now() < until:
                run.net.sleep(RETRY_PAUSE)
        finally:
            with self._lock:
                copied, self._copied, self._is_settling = self._copied, set(), False
        self.update_reach(node for node in copied if node in run.roster.domains)
        if run.ledger.record is None:  # else the next admission does
            run.enact_changes()

    def update_reach(self, nodes: Iterable[NodeId]) -> None:
        """Ask nodes how far their copies are: they may be complete since the last commit."""
        run = self._run
        answers = run.rpc.call_all(nodes, FetchReach())
        reaches = {node: each for node, each in answers.items() if isinstance(each, bytes)}
        with self._lock:
            run.roster.report_reach(reaches, run.ledger.committed.epoch)
