"""A node's peers: requests to them, the watch of its neighbour, and reports to the coordinator.

A request gets a timeout in proportion to its bytes. When all requests of a round to a peer fail,
the peer is pinged, with longer and longer timeouts. If it answers, it is reported as slow and
nothing else; if not, every further round is reported as unreachable, and the coordinator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from millstream.errors import MillstreamError
from millstream.node.machine import NodeMachine
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.membership import FencedError, Ping, ReportSlow, ReportUnreachable
from millstream.wire.net import Net
from millstream.wire.request import Request
from millstream.wire.timeouts import CALL_TIMEOUT, REPORT_TIMEOUT, ping_timeout, timeout_for

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
_ROUNDS = 3


@dataclass(frozen=True)
class Outgoing(Generic[A_co]):
    """A request to a peer, and its approximate size in bytes."""

    peer: NodeId
    request: Request[A_co]
    size: int


class Peers:
    """Calls the other nodes, and reports those that do not answer."""

    def __init__(
        self,
        machine: NodeMachine,
        net: Net,
        coordinator: str,
        watch: tuple[float, float],
        stop: Callable[[], None],
    ) -> None:
        """``watch`` is the interval and the timeout of the pings to the neighbour."""
        self._machine = machine
        self._net = net
        self._coordinator = coordinator
        self._every, self._timeout = watch
        self._stop = stop
        self._lock = net.lock()
        self._last_heard: dict[NodeId, float] = {}
        self._pinging: set[NodeId] = set()

    def call(self, peer: NodeId, request: Request[A], timeout: float) -> A:
        """Call a peer; a failure is not reported."""
        address = self._machine.address(peer)
        if address is None:
            raise UnreachableError(peer, "no address of it is known here")
        return self._net.call(address, request, timeout)

    def heard_from(self, peer: NodeId) -> None:
        """Note that a peer has called: it is alive."""
        self._last_heard[peer] = self._net.now()

    # -- rounds --------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Outgoing[A]]) -> list[A | Exception]:
        """Send requests; those that time out at a living peer are retried a few times."""
        answers: dict[int, A | Exception] = {}
        unanswered = list(range(len(messages)))
        for round_ in range(_ROUNDS):
            sent = self.send([messages[at] for at in unanswered], patience=2**round_)
            answers.update(zip(unanswered, sent, strict=True))
            late = [at for at in unanswered if _timed_out(answers[at])]
            peers = {messages[at].peer for at in late}
            alive = {peer: self._answers(peer, self._timeout) for peer in peers}
            unanswered = [at for at in late if alive[messages[at].peer]]
            if not unanswered:
                break
        return [answers[at] for at in range(len(messages))]

    def send(self, messages: Sequence[Outgoing[A]], patience: float = 1.0) -> list[A | Exception]:
        """Send requests concurrently, once; return the answer or the error of each."""
        # All requests to a peer share one link.
        load: dict[NodeId, int] = {}
        for message in messages:
            load[message.peer] = load.get(message.peer, 0) + message.size
        started = self._net.now()
        answers = self._net.gather(
            [
                partial(self.call, m.peer, m.request, patience * timeout_for(load[m.peer]))
                for m in messages
            ]
        )
        self._machine.meter.copied(self._net.now() - started)
        for peer in load:
            got = [a for m, a in zip(messages, answers, strict=True) if m.peer == peer]
            if all(isinstance(answer, UnreachableError) for answer in got):
                self._investigate(peer, late=any(_timed_out(answer) for answer in got))
        return answers

    # -- peers that do not answer --------------------------------------------------------

    def _investigate(self, peer: NodeId, late: bool = False) -> None:
        """Ping a peer in the background, unless that is under way."""
        with self._lock:
            if peer in self._pinging:
                return
            self._pinging.add(peer)
        self._net.spawn(partial(self._ping_until_decided, peer, late), "ping")

    def _ping_until_decided(self, peer: NodeId, late: bool) -> None:
        """Ping a peer until it answers or is out of the ring; report each failed round."""
        rounds = 0
        try:
            while self._is_peer(peer):
                if self._answers(peer, ping_timeout(rounds, self._timeout)):
                    if late:
                        reason = "it does not receive copies in time"
                        self._report(ReportSlow(peer, self._machine.node, reason), CALL_TIMEOUT)
                    return
                rounds += 1
                report = ReportUnreachable(peer, self._machine.node, rounds)
                if not self._report(report, REPORT_TIMEOUT):
                    return
                self._net.sleep(self._every)
        finally:
            with self._lock:
                self._pinging.discard(peer)

    def _is_peer(self, peer: NodeId) -> bool:
        placement = self._machine.placement
        return placement is not None and peer in placement.nodes

    def _answers(self, peer: NodeId, timeout: float) -> bool:
        try:
            self.call(peer, Ping(), timeout)
        except UnreachableError:
            return False
        except MillstreamError:
            return True  # an answer of any kind is a sign of life
        return True

    def _report(self, report: Request[Any], timeout: float) -> bool:
        """Report to the coordinator; return False if this node is itself out of the ring."""
        try:
            self._net.call(self._coordinator, report, timeout)
        except FencedError:
            self._stop()
            return False
        except MillstreamError:
            return True  # the next round is reported again
        return True

    # -- the watch -----------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the counter-clockwise neighbour; a copy received from it is a sign of life."""
        while True:
            self._net.sleep(self._every)
            neighbour = self._neighbour()
            if neighbour is None or self._recently_heard(neighbour):
                continue
            if not self._answers(neighbour, self._timeout):
                self._investigate(neighbour)

    def _neighbour(self) -> NodeId | None:
        placement, node = self._machine.placement, self._machine.node
        if placement is None or node not in placement.ring.nodes:
            return None
        nodes = placement.ring.nodes
        before = nodes[nodes.index(node) - 1]
        return None if before == node else before

    def _recently_heard(self, peer: NodeId) -> bool:
        heard = self._last_heard.get(peer)
        return heard is not None and self._net.now() - heard < self._every


def _timed_out(answer: object) -> bool:
    return isinstance(answer, UnreachableError) and answer.timed_out
