"""What the adversary does to nodes, and which of them have suffered from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from millstream.coordinator.failure_evidence import Patience
from millstream.sim.network import World

NODE_TIMEOUT = Patience().silence
LONGEST_OUTAGE = 30.0


class Harm:
    """Crashes, pauses and cut links of nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._suffering: Counter[str] = Counter()  # how many blows a node suffers from now
        self.harmed: set[str] = set()  # to whom something happened for which they may be fenced
        self.until = 0.0  # when the last outage so far is over

    @property
    def out_of_reach(self) -> set[str]:
        """The nodes that are down at the moment, or cannot be reached."""
        return {*+self._suffering}

    def unharmed(self, nodes: Iterable[str]) -> list[str]:
        """Those of some nodes that nothing happens to at the moment."""
        return [n for n in nodes if self._world.alive(n) and self._suffering[n] <= 0]

    def crash(self, node: str) -> None:
        """End a node."""
        self._suffering[node] += 1
        self.harmed.add(node)
        self.until = max(self.until, self._world.now)
        self._world.crash(node)

    def pause(self, node: str) -> None:
        """Stop a node for a while; for a short one it may not be fenced."""
        world = self._world
        world.pause(node)
        if self._for_a_while(node, partial(world.resume, node)) > NODE_TIMEOUT / 2:
            self.harmed.add(node)

    def cut(self, node: str, others: Iterable[str]) -> None:
        """Cut the link to or from each of some others, for a while."""
        world = self._world
        links = [(node, other) if world.maybe(0.5) else (other, node) for other in others]
        self.harmed.update((node, *others))
        for source, target in links:
            world.cut(source, target)

        def mend() -> None:
            for source, target in links:
                world.mend(source, target)

        self._for_a_while(node, mend)

    def _for_a_while(self, node: str, end: Callable[[], None]) -> float:
        world = self._world
        self._suffering[node] += 1

        def over() -> None:
            end()
            self._suffering[node] -= 1

        seconds = world.random.choice((0.05, 1.0, NODE_TIMEOUT / 2, LONGEST_OUTAGE))
        self.until = max(self.until, world.now + seconds)
        world.at(seconds, over)
        return seconds
