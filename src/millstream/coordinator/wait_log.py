"""What the coordinator waits for, and which nodes are slow.

A loop that waits gives its reason in each round; after ten seconds the reason is logged, and shown
by ``status()``. A node is slow if it answers its pings in time, but not other requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.ring.ring import NodeId
from millstream.wire.net import Net

log = logging.getLogger("millstream")

LOG_EVERY = 10.0
_SLOW_FOR = 30.0


class Wait:
    """One wait, while it lasts."""

    def __init__(self, net: Net, what: str) -> None:
        self._net = net
        self._what = what
        self._began = self._logged = net.now()
        self._reason = ""

    def because(self, reason: str) -> None:
        """Give the reason for waiting on; logged at most every ten seconds."""
        self._reason = reason
        now = self._net.now()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            log.warning("%s", self)

    @property
    def is_long(self) -> bool:
        return self._net.now() - self._began >= LOG_EVERY

    def __str__(self) -> str:
        seconds = self._net.now() - self._began
        return f"{self._what} has been waiting for {seconds:.0f} s: {self._reason}"


class WaitLog:
    """The waits under way, and the nodes that are slow."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._lock = net.lock()
        self._waits: list[Wait] = []
        self._slow: dict[NodeId, float] = {}

    @contextmanager
    def wait(self, what: str) -> Iterator[Wait]:
        """Register a wait; ``what`` is waiting."""
        wait = Wait(self._net, what)
        with self._lock:
            self._waits.append(wait)
        try:
            yield wait
        finally:
            with self._lock:
                self._waits.remove(wait)

    def long(self) -> list[str]:
        """The waits that have lasted for more than ten seconds, and why."""
        with self._lock:
            return [str(wait) for wait in self._waits if wait.is_long]

    def slow(self, node: NodeId, reason: str) -> None:
        """Note that a node answers its pings, but not another request in time."""
        now = self._net.now()
        with self._lock:
            known = now - self._slow.get(node, -_SLOW_FOR) < _SLOW_FOR
            self._slow[node] = now
        if not known:
            log.warning("node %s is alive, but slow: %s; waiting for it", node[:8], reason)

    def slow_nodes(self) -> list[NodeId]:
        """The nodes that were slow within the last 30 seconds."""
        now = self._net.now()
        with self._lock:
            return [node for node, at in self._slow.items() if now - at < _SLOW_FOR]

    def forget(self, node: NodeId) -> None:
        """Drop a node that is out of the run."""
        with self._lock:
            self._slow.pop(node, None)
