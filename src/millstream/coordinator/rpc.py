"""Calls to the nodes of a run: one by one, concurrently, and without waiting for the answer."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.net import Net
from millstream.wire.request import Request
from millstream.wire.timeouts import CALL_TIMEOUT, RETRY_PAUSE

A = TypeVar("A")
_NOTIFY_TIMEOUT = 10.0
_FIRST_POLL = 0.005


class NodeRpc:
    """Knows where the nodes of a run listen."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.addresses: Mapping[NodeId, str] = {}
        self._answered: dict[NodeId, float] = {}

    def call(self, node: NodeId, request: Request[A], timeout: float = CALL_TIMEOUT) -> A:
        """Call a node; raises ``UnreachableError`` or the node's error."""
        began = self._net.now()
        answer = self._net.call(self.addresses[node], request, timeout)
        self._answered[node] = began
        return answer

    def answered_since(self, time: float) -> set[NodeId]:
        """The nodes that have answered a call which began at this time or later."""
        return {node for node, began in self._answered.copy().items() if began >= time}

    def forget(self, node: NodeId) -> None:
        """Drop what is known of a node that is out of the run."""
        self._answered.pop(node, None)

    def call_all(
        self, nodes: Iterable[NodeId], request: Request[A], timeout: float = CALL_TIMEOUT
    ) -> dict[NodeId, A | Exception]:
        """Call nodes concurrently; return the answer or the error of each."""
        called = list(nodes)
        answers = self._net.gather([partial(self.call, n, request, timeout) for n in called])
        return dict(zip(called, answers, strict=True))

    def call_living(
        self,
        nodes: Iterable[NodeId],
        living: Container[NodeId],
        request: Request[A],
        timeout: float,
    ) -> dict[NodeId, A | Exception]:
        """Call nodes with a long timeout; those no longer ``living`` are not waited for."""
        called = list(nodes)
        answers: dict[NodeId, A | Exception] = {}

        def call(node: NodeId) -> None:
            [answers[node]] = self._net.gather([partial(self.call, node, request, timeout)])

        for node in called:
            self._net.spawn(partial(call, node), type(request).__name__)
        pause = _FIRST_POLL
        while any(node not in answers for node in called if node in living):
            self._net.sleep(pause)
            pause = min(2 * pause, RETRY_PAUSE)
        return dict(answers)

    def notify(self, nodes: Iterable[NodeId], request: Request[Any]) -> None:
        """Call nodes in the background and ignore what comes of it."""
        for node in nodes:
            self._net.spawn(partial(self.try_call, node, request), type(request).__name__)

    def try_call(
        self, node: NodeId, request: Request[Any], timeout: float = _NOTIFY_TIMEOUT
    ) -> None:
        """Call a node and ignore errors: the failure detector notices dead nodes."""
        try:
            self.call(node, request, timeout)
        except MillstreamError:
            return
