"""Injects faults into nodes: crashes, pauses and cut links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from millstream.coordinator.failure_evidence import Patience
from millstream.sim.network import World

NODE_TIMEOUT = Patience().silence
LONGEST_OUTAGE = 30.0


class FaultInjector:
    """The faults of nodes, past and present."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._active: Counter[str] = Counter()  # the number of faults of a node at the moment
        self.faulted: set[str] = set()  # nodes with a fault for which they may be fenced
        self.until = 0.0  # when the last fault so far ends

    @property
    def out_of_reach(self) -> set[str]:
        """The nodes that have crashed, are paused or cannot be reached."""
        return {*+self._active}

    def healthy(self, nodes: Iterable[str]) -> list[str]:
        """Those of some nodes that have no fault at the moment."""
        return [n for n in nodes if self._world.alive(n) and self._active[n] <= 0]

    def crash(self, node: str) -> None:
        """Crash a node."""
        self._active[node] += 1
        self.faulted.add(node)
        self.until = max(self.until, self._world.now)
        self._world.crash(node)

    def pause(self, node: str) -> None:
        """Pause a node for a while; for a short pause it must not be fenced."""
        world = self._world
        world.pause(node)
        if self._for_a_while(node, partial(world.resume, node)) > NODE_TIMEOUT / 2:
            self.faulted.add(node)

    def cut(self, node: str, others: Iterable[str]) -> None:
        """Cut the link to or from each of some others, for a while."""
        world = self._world
        links = [(node, other) if world.maybe(0.5) else (other, node) for other in others]
        self.faulted.update((node, *others))
        for source, target in links:
            world.cut(source, target)

        def mend() -> None:
            for source, target in links:
                world.mend(source, target)

        self._for_a_while(node, mend)

    def _for_a_while(self, node: str, end: Callable[[], None]) -> float:
        world = self._world
        self._active[node] += 1

        def over() -> None:
            end()
            self._active[node] -= 1

        seconds = world.random.choice((0.05, 1.0, NODE_TIMEOUT / 2, LONGEST_OUTAGE))
        self.until = max(self.until, world.now + seconds)
        world.at(seconds, over)
        return seconds
