"""A node's peers: calls to them, the watch of the neighbour, and what is reported about them.

A call gets time in proportion to its bytes. When all calls of a round to a peer fail, the peer is
pinged, with more and more patience: if it answers, it is slow, which is reported and no more; if it
does not, the coordinator is told once for every round, and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.errors import MillstreamError
from millstream.node.machine import NodeMachine
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.messages import FencedError
from millstream.wire.net import Net

_LEAST_TIMEOUT = 5.0
# What a peer that is busy with other things takes in at least, in bytes per second.
_LEAST_RATE = 4 * 2**20
_ROUNDS = 3
_SUSPECT_TIMEOUT = 60.0
_SLOW_TIMEOUT = 5.0
_LONGEST_PING = 8.0


def timeout_for(bytes_: int) -> float:
    """How long a call that carries so many bytes may take, in seconds."""
    return _LEAST_TIMEOUT + bytes_ / _LEAST_RATE


@dataclass(frozen=True)
class Message:
    """Something for a peer, and about how large it is."""

    peer: NodeId
    action: str
    body: object
    bytes: int


class Peers:
    """Speaks to the other nodes, and tells the coordinator whom it cannot reach."""

    def __init__(
        self,
        machine: NodeMachine,
        net: Net,
        coordinator: str,
        watch: tuple[float, float],
        stop: Callable[[], None],
    ) -> None:
        """``watch`` is how often the neighbour is pinged, and how long a ping waits."""
        self._machine = machine
        self._net = net
        self._coordinator = coordinator
        self._every, self._timeout = watch
        self._stop = stop
        self._lock = net.lock()
        self._heard: dict[NodeId, float] = {}
        self._inquiries: set[NodeId] = set()

    def call(self, peer: NodeId, action: str, body: object, timeout: float) -> Any:
        """Call a peer; nothing is concluded from a failure."""
        address = self._machine.address(peer)
        if address is None:
            raise UnreachableError(peer, "no address of it is known here")
        return self._net.call(address, action, body, timeout)

    def heard(self, peer: NodeId) -> None:
        """A peer has called: it lives."""
        self._heard[peer] = self._net.now()

    # -- rounds --------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Message]) -> list[Any]:
        """Send messages; what a living peer did not take in time is sent again, a few times."""
        answers: dict[int, Any] = {}
        left = list(range(len(messages)))
        for round_ in range(_ROUNDS):
            found = self.send([messages[at] for at in left], patience=2**round_)
            answers.update(zip(left, found, strict=True))
            late = [at for at in left if _is_late(answers[at])]
            alive = {p: self._answers(p, self._timeout) for p in {messages[at].peer for at in late}}
            left = [at for at in late if alive[messages[at].peer]]
            if not left:
                break
        return [answers[at] for at in range(len(messages))]

    def send(self, messages: Sequence[Message], patience: float = 1.0) -> list[Any]:
        """Send messages side by side, once: what each peer answered, or why it did not."""
        # All go through one link at the same time.
        load: dict[NodeId, int] = {}
        for message in messages:
            load[message.peer] = load.get(message.peer, 0) + message.bytes
        answers = self._net.gather(
            [
                partial(self.call, m.peer, m.action, m.body, patience * timeout_for(load[m.peer]))
                for m in messages
            ]
        )
        for peer in load:
            got = [a for m, a in zip(messages, answers, strict=True) if m.peer == peer]
            if all(isinstance(answer, UnreachableError) for answer in got):
                self._inquire(peer, late=any(_is_late(answer) for answer in got))
        return answers

    # -- peers that do not answer --------------------------------------------------------

    def _inquire(self, peer: NodeId, late: bool = False) -> None:
        """Look at a peer, unless somebody is at it."""
        with self._lock:
            if peer in self._inquiries:
                return
            self._inquiries.add(peer)
        self._net.spawn(partial(self._inquiry, peer, late), "inquiry")

    def _inquiry(self, peer: NodeId, late: bool) -> None:
        """Ping a peer until it answers or is out of the ring; each round in vain is reported."""
        rounds = 0
        try:
            while self._is_peer(peer):
                patience = min(self._timeout * 2**rounds, _LONGEST_PING)
                if self._answers(peer, patience):
                    if late:
                        self._report("slow", peer, "it does not take copies in time", _SLOW_TIMEOUT)
                    return
                rounds += 1
                if not self._report("suspect", peer, rounds, _SUSPECT_TIMEOUT):
                    return
                self._net.sleep(self._every)
        finally:
            with self._lock:
                self._inquiries.discard(peer)

    def _is_peer(self, peer: NodeId) -> bool:
        placement = self._machine.placement
        return placement is not None and peer in placement.nodes

    def _answers(self, peer: NodeId, timeout: float) -> bool:
        try:
            self.call(peer, "ping", None, timeout)
        except UnreachableError:
            return False
        except MillstreamError:
            return True  # an answer of any kind is a sign of life
        return True

    def _report(self, action: str, peer: NodeId, what: object, timeout: float) -> bool:
        """Tell the coordinator; False if this node is itself out of the ring."""
        try:
            self._net.call(self._coordinator, action, (peer, self._machine.node, what), timeout)
        except FencedError:
            self._stop()
            return False
        except MillstreamError:
            return True  # the next round is reported again
        return True

    # -- watching ------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the counter-clockwise neighbour; a copy that came from it is a sign of life."""
        while True:
            self._net.sleep(self._every)
            neighbour = self._neighbour()
            if neighbour is None or self._recently_heard(neighbour):
                continue
            if not self._answers(neighbour, self._timeout):
                self._inquire(neighbour)

    def _neighbour(self) -> NodeId | None:
        placement, node = self._machine.placement, self._machine.node
        if placement is None or node not in placement.ring.nodes:
            return None
        nodes = placement.ring.nodes
        before = nodes[nodes.index(node) - 1]
        return None if before == node else before

    def _recently_heard(self, peer: NodeId) -> bool:
        heard = self._heard.get(peer)
        return heard is not None and self._net.now() - heard < self._every


def _is_late(answer: object) -> bool:
    return isinstance(answer, UnreachableError) and answer.timed_out
