"""What the coordinator waits for, and which nodes are slow: logged now and then, never silent.

Whoever waits in a loop says each time why it goes on; after a while that is logged, and shown by
``status()``. A node is slow if it answers its pings, but not what it was asked, in time.
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
    """One wait, from its beginning to its end."""

    def __init__(self, net: Net, what: str) -> None:
        self._net = net
        self._what = what
        self._began = self._logged = net.now()
        self._reason = ""

    def because(self, reason: str) -> None:
        """Say why the wait goes on; logged at most every ten seconds."""
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
        """Wait for something, of which the description says ``what``."""
        begun = Wait(self._net, what)
        with self._lock:
            self._waits.append(begun)
        try:
            yield begun
        finally:
            with self._lock:
                self._waits.remove(begun)

    def long(self) -> list[str]:
        """The waits that have lasted for more than ten seconds, and why."""
        with self._lock:
            return [str(wait) for wait in self._waits if wait.is_long]

    def late(self, node: NodeId, what: str) -> None:
        """A node answers its pings, but something else not in time."""
        now = self._net.now()
        with self._lock:
            known = now - self._slow.get(node, -_SLOW_FOR) < _SLOW_FOR
            self._slow[node] = now
        if not known:
            log.warning("node %s is alive, but slow: %s; it is waited for", node[:8], what)

    def slow(self) -> list[NodeId]:
        """The nodes that were slow within the last half minute."""
        now = self._net.now()
        with self._lock:
            return [node for node, at in self._slow.items() if now - at < _SLOW_FOR]

    def forget(self, node: NodeId) -> None:
        """The node is out of the run."""
        with self._lock:
            self._slow.pop(node, None)
