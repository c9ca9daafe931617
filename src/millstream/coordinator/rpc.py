"""Calls to the nodes of a run: one by one, side by side, and without caring for the answer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.net import Net

ASK_TIMEOUT = 5.0
_QUIET_TIMEOUT = 10.0
_LOOK_AGAIN = 0.005
_LOOK_RARELY = 0.05


class NodeRpc:
    """Knows where the nodes of a run listen."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.addresses: Mapping[NodeId, str] = {}

    def ask(self, node: NodeId, action: str, body: object, timeout: float = ASK_TIMEOUT) -> Any:
        """Ask a node; raises ``UnreachableError`` or what the node says."""
        return self._net.call(self.addresses[node], action, body, timeout)

    def all(
        self, nodes: Iterable[NodeId], action: str, body: object, timeout: float = ASK_TIMEOUT
    ) -> dict[NodeId, Any]:
        """Ask nodes side by side; each gives an answer or the exception that came instead."""
        asked = list(nodes)
        answers = self._net.gather([partial(self.ask, n, action, body, timeout) for n in asked])
        return dict(zip(asked, answers, strict=True))

    def living(
        self,
        nodes: Iterable[NodeId],
        alive: Callable[[], Container[NodeId]],
        action: str,
        body: object,
        timeout: float,
    ) -> dict[NodeId, Any]:
        """Ask nodes for what takes long; who is taken for dead meanwhile is not waited for."""
        asked = list(nodes)
        answers: dict[NodeId, Any] = {}

        def ask(node: NodeId) -> None:
            [answers[node]] = self._net.gather([partial(self.ask, node, action, body, timeout)])

        for node in asked:
            self._net.spawn(partial(ask, node), action)
        pause = _LOOK_AGAIN
        while any(node not in answers for node in asked if node in alive()):
            self._net.sleep(pause)
            pause = min(2 * pause, _LOOK_RARELY)
        return dict(answers)

    def tell(self, nodes: Iterable[NodeId], action: str, body: object) -> None:
        """Tell nodes something, and do not wait for them."""
        for node in nodes:
            self._net.spawn(partial(self.quietly, node, action, body), action)

    def quietly(
        self, node: NodeId, action: str, body: object, timeout: float = _QUIET_TIMEOUT
    ) -> None:
        """Ask a node, whatever comes of it: who is gone is noticed elsewhere."""
        try:
            self.ask(node, action, body, timeout)
        except MillstreamError:
            return
