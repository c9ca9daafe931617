"""Reading the committed state of a run, from the nodes that own it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from millstream.coordinator.service import Coordinator
from millstream.errors import MillstreamError
from millstream.node.messages import NotHeld
from millstream.ring.masks import runs_of
from millstream.state.pickling import loads
from millstream.wire.calls import Unreachable

_TIMEOUT = 60.0
_WAIT = 0.05
_SLOTS_AT_ONCE = 128


class RunEnded(MillstreamError):
    """Something was asked of a run that has ended."""


class StateReader:
    """Reads state while the run goes on; a takeover in between only takes time."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def get(self, job: int, key: object) -> Any:
        """A key's committed state, or None."""
        self._await_seals()
        found = [loads(answer) for answer in self._ask_all("get", (job, key))]
        return next((state for state in found if state is not None), None)

    def items(self, job: int) -> Iterator[tuple[Any, Any]]:
        """All committed keys of a job, owner by owner; epochs may be committed meanwhile."""
        self._await_seals()
        coordinator = self._coordinator
        left = np.ones(coordinator.roster.placement.ring.slots, dtype=bool)
        while left.any():
            start = int(left.argmax())
            share = coordinator.roster.placement.shares(range(start, len(left)))[0]
            run = next(iter(runs_of(left, share.slots)))
            part = range(run.start, min(run.stop, run.start + _SLOTS_AT_ONCE))
            try:
                answer = coordinator.ask(share.owner, "items", (job, part), _TIMEOUT)
            except Unreachable:
                coordinator.suspect(share.owner)
                continue
            except NotHeld:
                coordinator.net.sleep(_WAIT)  # it will be told of the ring in force
                continue
            left[part.start : part.stop] = False
            for key, value in answer:
                yield key, loads(value)

    def _await_seals(self) -> None:
        if self._coordinator.closed:
            raise RunEnded("the run has ended and its state with it; read state before stop()")
        self._ask_all("seal", self._coordinator.ledger.committed)

    def _ask_all(self, action: str, body: object) -> list[Any]:
        """Ask until all nodes have answered under one placement."""
        coordinator = self._coordinator
        while True:
            version = coordinator.roster.placement.version
            answers = coordinator.ask_all(action, body, _TIMEOUT)
            for node, answer in answers.items():
                if isinstance(answer, Unreachable):
                    coordinator.suspect(node)
                elif isinstance(answer, NotHeld):
                    coordinator.net.sleep(_WAIT)  # it replays what it took over
                elif isinstance(answer, Exception):
                    raise answer
            failed = any(isinstance(answer, Exception) for answer in answers.values())
            if not failed and version == coordinator.roster.placement.version:
                return list(answers.values())
