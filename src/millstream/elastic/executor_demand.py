"""How many executors the pool asks Spark for, and which it gives back. No I/O, no clock.

Spark replaces executors that die by itself. It is asked for more when nodes do not fit on those
that are there, and executors whose nodes left are released.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.elastic.pool_events import EventKind, PoolEvent
from millstream.elastic.pool_options import ExecutorSupply, PoolOptions
from millstream.elastic.pool_plan import Executor


@dataclass
class _Shortage:
    """Nodes do not fit on the executors, since when, and what was done about it."""

    since: float
    requested: int | None = None
    before: int = 0
    reported: bool = False


class ExecutorDemand:
    """Keeps track of the executors that are wanted."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._is_elastic = options.supply is ExecutorSupply.ELASTIC
        self._shortage: _Shortage | None = None
        self._aim = 0  # how many executors Spark tries to keep
        self._vacated: dict[str, float] = {}
        self._released: dict[str, float] = {}
        self.events: list[PoolEvent] = []

    @property
    def is_denied(self) -> bool:
        """Whether executors have been missing for so long that they are taken as not granted."""
        return self._shortage is not None and self._shortage.reported

    def usable(self, executors: Iterable[Executor], now: float) -> list[Executor]:
        """The executors without those that were released, which end some seconds later."""
        listed = {executor.name: executor for executor in executors}
        patience = self._options.grant_within.total_seconds()
        self._released = {
            name: at
            for name, at in self._released.items()
            if name in listed and now - at < patience
        }
        return [each for name, each in listed.items() if name not in self._released]

    def request(
        self, executors: Sequence[Executor], short: int, per_executor: int, now: float
    ) -> int | None:
        """How many executors to ask for, if ``short`` nodes do not fit; None to ask for nothing."""
        there = len(executors)
        self._aim = max(self._aim, there)
        if short <= 0:
            return self._end_shortage(there)
        shortage = self._shortage = self._shortage or _Shortage(now)
        needed = there + math.ceil(short / per_executor)
        if self._is_elastic and needed > self._aim:
            if shortage.requested is None:
                shortage.before = self._aim
            shortage.requested = self._aim = needed
            shortage.since, shortage.reported = now, False
            self._event(
                "executors-requested",
                f"asked Spark for {needed} executors instead of {there}: {short} nodes do not fit",
                {"executors": there, "requested": needed, "short": short},
            )
            return needed
        waited = now - shortage.since
        if waited >= self._options.grant_within.total_seconds() and not shortage.reported:
            shortage.reported = True
            then = (
                "they are started on the executors that are there"
                if self._options.overcommit
                else "the run continues with fewer nodes until there are more executors"
            )
            self._event(
                "executors-not-granted",
                f"{short} nodes have no room on {there} executors since {waited:.0f} s; {then}",
                {"executors": there, "needed": needed, "short": short, "waited": waited},
            )
        return None

    def _end_shortage(self, there: int) -> int | None:
        """All nodes fit: note what was granted, withdraw what is not needed any more."""
        shortage, self._shortage = self._shortage, None
        if shortage is None or shortage.requested is None:
            return None
        if there >= shortage.requested:
            facts = {"executors": there}
            self._event("executors-granted", f"there are {there} executors now", facts)
            return None
        self._aim = max(shortage.before, there)
        return self._aim

    def vacate(self, executor: str, now: float) -> None:
        """Note that a node of an executor left."""
        self._vacated.setdefault(executor, now)

    def release(
        self, executors: Iterable[Executor], nodes: Counter[str], now: float
    ) -> tuple[tuple[str, ...], int | None]:
        """The executors to release, because their nodes left, and how many there shall be then.

        ``nodes`` are those that are there or to come.
        """
        living = {executor.name for executor in executors}
        self._vacated = {
            name: since
            for name, since in self._vacated.items()
            if name in living and nodes[name] == 0
        }
        grace = self._options.release_after.total_seconds()
        release = tuple(name for name, since in self._vacated.items() if now - since >= grace)
        if not release or not self._is_elastic:
            return (), None
        for name in release:
            self._released[name] = now
            del self._vacated[name]
        self._aim -= len(release)
        text = f"released executor {', '.join(release)}, whose nodes left"
        self._event("executors-released", text, {"executors": release})
        return release, self._aim

    def _event(self, kind: EventKind, text: str, facts: Mapping[str, Any]) -> None:
        self.events.append(PoolEvent(kind, text, facts))
