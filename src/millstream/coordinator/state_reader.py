"""Reads the committed state of a run from the nodes that own it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_lookup import Lookup, States
from millstream.coordinator.state_scan import (
    ENDED,
    READ_TIMEOUT,
    SCAN_TIMEOUT,
    Explaining,
    Scan,
    close_views,
)
from millstream.ring.placement import Placement
from millstream.wire.calls import UnreachableError
from millstream.wire.persistence import NotReadyError
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.scan_filters import ScanFilter
from millstream.wire.state_reads import FoundStates, OpenScan, ScanBrokenError
from millstream.wire.timeouts import RETRY_PAUSE

A = TypeVar("A")
# The ring changes, or a node replays logs or was fenced: another one may have the slots by now.
_RETRIED = (NotReadyError, SlotsNotHeldError)


class StateReader:
    """Reads state while epochs run; a takeover delays a read.

    Reads happen within ``explaining``, which may raise a better explanation of a failure.
    """

    def __init__(self, coordinator: Coordinator, explaining: Explaining = nullcontext) -> None:
        self._coordinator = coordinator
        self._explaining = explaining

    def get(self, job: int, key: object) -> Any:
        """A key's committed state, or None."""
        return self.get_many(job, [key]).values[0]

    def get_many(self, job: int, keys: Sequence[object]) -> States:
        """The state of keys, all of one committed epoch."""
        with self._explaining():
            self._require_running()
            return self._states(job, keys)

    def items(self, job: int, where: ScanFilter | None = None) -> Scan:
        """Scan the keys of a job, or those that a filter selects, as of the newest commit."""
        with self._explaining():
            return self._scan(job, where)

    def _states(self, job: int, keys: Sequence[object]) -> States:
        ledger, slots = self._coordinator.ledger, self._coordinator.roster.placement.ring.slots
        kind = ledger.key_type(job)
        if kind is None or not keys:
            return States(ledger.committed.epoch, [None] * len(keys))
        lookup = Lookup(job, keys, kind, slots)
        if lookup.is_empty:
            return States(ledger.committed.epoch, lookup.values)
        with self._coordinator.waits.wait("a read of state") as wait:
            while not lookup.is_done:
                self._require_running()
                wait.because(self._look_up(lookup))
        return States(lookup.epoch, lookup.values)

    def _look_up(self, lookup: Lookup) -> str:
        """Ask the owners for what is missing; return why something still is."""
        coordinator = self._coordinator
        placement, committed = coordinator.roster.placement, coordinator.ledger.committed
        requests = lookup.requests(placement, committed)
        calls = [
            partial(coordinator.rpc.call, owner, request, READ_TIMEOUT)
            for owner, request, _ in requests
        ]
        answers: list[FoundStates | Exception]
        answers = [_outcome(calls[0])] if len(calls) == 1 else coordinator.net.gather(calls)
        problems = []
        for (owner, _, which), answer in zip(requests, answers, strict=True):
            if isinstance(answer, FoundStates):
                lookup.found(which, answer)
            elif isinstance(answer, UnreachableError):
                coordinator.report_unanswered(owner, answer, "its state")
            elif not isinstance(answer, _RETRIED):
                raise answer
            if isinstance(answer, Exception):
                problems.append(str(answer))
        if problems:
            coordinator.net.sleep(RETRY_PAUSE)  # the ring changes, or a node replays logs
        return "; ".join(problems) or "an epoch was committed meanwhile"

    def _scan(self, job: int, where: ScanFilter | None) -> Scan:
        self._require_running()
        deadline = self._coordinator.net.now() + SCAN_TIMEOUT
        while True:
            opened = self._open(job)
            if opened is not None:
                return Scan(self._coordinator, *opened, self._explaining, where)
            if self._coordinator.net.now() > deadline:
                raise ScanBrokenError("not all nodes answered in time")
            self._coordinator.net.sleep(RETRY_PAUSE)

    def _open(self, job: int) -> tuple[OpenScan, Placement] | None:
        """Open a view on every node, also those with copies; None if not all succeeded."""
        coordinator, roster = self._coordinator, self._coordinator.roster
        with coordinator.between_commits() as committed:
            name, placement = f"scan-{next(coordinator.scan_numbers)}", roster.placement
            request = OpenScan(name, job, committed, placement.version)
            answers = coordinator.rpc.call_all(roster.nodes, request)
        for node, answer in answers.items():
            if isinstance(answer, UnreachableError):
                coordinator.report_unanswered(node, answer, "its state")
            elif isinstance(answer, Exception) and not isinstance(answer, _RETRIED):
                raise answer
        if any(isinstance(answer, Exception) for answer in answers.values()):
            close_views(coordinator, request)
            return None
        return request, placement

    def _require_running(self) -> None:
        if self._coordinator.is_closed:
            raise RunEndedError(ENDED)


def _outcome(call: Callable[[], A]) -> A | Exception:
    try:
        return call()
    except Exception as problem:
        return problem
