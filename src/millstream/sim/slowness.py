"""Slowness: how long work and transfers take without any fault.

A slow node is never dead: it answers its pings, delayed at most by a pause of its
garbage collector.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from millstream.node.machine import NodeMachine
from millstream.node.slot_store import SlotStore
from millstream.sim.network import SimNet, World

_QUICK = (0.0, 0.001, 0.05)


@dataclass(frozen=True, kw_only=True)
class Slowness:
    """The longest that each thing takes, in seconds; ``bandwidth`` is in bytes a second."""

    reduce: float = 0.05
    seal: float = 0.0
    encode: float = 0.0
    pause: float = 0.0
    pauses: float = 0.0  # how often a node pauses, per second
    bandwidth: float | None = None

    @classmethod
    def of(cls, seed: int) -> Slowness:
        """Draw the slowness of a seed; most have none."""
        rng = random.Random(f"strain {seed}")
        if rng.random() < 0.7:
            return cls()
        return cls(
            reduce=rng.choice((0.05, 2.0, 8.0)),
            seal=rng.choice((0.0, 1.0, 4.0)),
            encode=rng.choice((0.0, 1.0, 4.0)),
            pause=rng.choice((0.0, 1.0, 4.0)),
            pauses=rng.choice((0.02, 0.2)),
            bandwidth=rng.choice((None, 2_000.0, 20_000.0)),
        )

    def slow_down(self, machine: NodeMachine, net: SimNet, world: World) -> None:
        """Delay the work of a node, so that other things happen meanwhile."""

        def nap(longest: float) -> None:
            chance = world.random.choice((*_QUICK, None))
            net.sleep(world.random.random() * longest if chance is None else min(chance, longest))

        _before(machine, "reduce", partial(nap, self.reduce))
        if self.seal:
            _between(machine.store, partial(nap, self.seal))
        if self.encode:
            _before(machine, "snapshots", partial(nap, self.encode))
            _before(machine, "copy_of", partial(nap, self.encode))

    def begin(self, world: World, nodes: Callable[[], Sequence[str]]) -> None:
        """Pause nodes at random, from now on."""
        world.bandwidth = self.bandwidth
        if self.pause:
            world.at(world.random.expovariate(self.pauses), partial(self._pause, world, nodes))

    def _pause(self, world: World, nodes: Callable[[], Sequence[str]]) -> None:
        able = nodes()
        if able:
            node = world.random.choice(able)
            world.pause(node)
            world.at(world.random.random() * self.pause, partial(world.resume, node))
        world.at(world.random.expovariate(self.pauses), partial(self._pause, world, nodes))


def _between(store: SlotStore, nap: Callable[[], None]) -> None:
    """Delay each step of merging an epoch."""
    merge_steps = store.merge_steps

    def slowly() -> Iterator[Callable[[], None]]:
        for step in merge_steps():
            nap()
            yield step

    store.merge_steps = slowly  # type: ignore[method-assign]


def _before(machine: NodeMachine, name: str, nap: Callable[[], None]) -> None:
    function = getattr(machine, name)

    @wraps(function)
    def slowly(*arguments: Any) -> Any:
        nap()
        return function(*arguments)

    setattr(machine, name, slowly)
