"""Disks of simulated nodes, for keys that do not fit into memory, and for outputs that wait.

Keys are stored as bytes, as in a real table. A disk may be full for a while: then nothing
can be written or removed, and of what was to be added a part may be there.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.node.output_spool import OutputSpool
from millstream.sim.network import World
from millstream.state.key_view import Entries
from millstream.state.pickling import dumps, loads
from millstream.state.spill import Spilling, Table


@dataclass(frozen=True, kw_only=True)
class ScratchDisk:
    """What a node may hold in memory, in bytes, before it spills; how often its disk is full."""

    keys: int
    outputs: int
    full: float = 0.0

    @classmethod
    def of(cls, seed: int) -> ScratchDisk | None:
        """Draw it; half of the runs have enough memory."""
        rng = random.Random(f"disk {seed}")
        if rng.random() < 0.5:
            return None
        return cls(
            keys=rng.choice((0, 1_000, 4_000)),
            outputs=rng.choice((0, 500)),
            full=rng.choice((0.0, 0.0, 0.1)),
        )

    def spilling(self, world: World) -> Spilling:
        """Where keys go that rest a while."""
        return Spilling(self.keys, lambda job: SimTable(world, self.full))

    def spool(self, world: World) -> OutputSpool:
        """The spool of outputs: files of this machine, unlinked at once."""

        def folder() -> str:
            if world.maybe(self.full):
                raise _no_space()
            return tempfile.gettempdir()

        return OutputSpool(folder, self.outputs)


class SimTable:
    """Cold keys of one job."""

    def __init__(self, world: World, full: float) -> None:
        self._world = world
        self._full = full
        self._rows: dict[int, dict[Any, bytes]] = {}

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        fails = self._world.maybe(self._full)
        for slot, of_slot in entries.items():
            for key, found in of_slot.items():
                if fails and self._world.maybe(0.5):
                    raise _no_space()
                self._rows.setdefault(slot, {})[key] = dumps(found)
        if fails:
            raise _no_space()

    def get(self, keys: Mapping[int, Iterable[Any]]) -> Table:
        found: Table = {}
        for slot, of_slot in keys.items():
            rows = self._rows.get(slot, {})
            if here := {key: loads(rows[key]) for key in of_slot if key in rows}:
                found[slot] = here
        return found

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        self._require_space()
        for slot, of_slot in keys.items():
            for key in of_slot:
                self._rows.get(slot, {}).pop(key, None)

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        for key, data in self._rows.get(slot, {}).items():
            yield key, loads(data)

    def drop(self, slots: Iterable[int]) -> None:
        self._require_space()
        for slot in slots:
            self._rows.pop(slot, None)

    def _require_space(self) -> None:
        if self._world.maybe(self._full):
            raise _no_space()


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
