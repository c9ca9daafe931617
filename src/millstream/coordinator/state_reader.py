"""Reading the committed state of a run, from the nodes that own it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from millstream.coordinator.service import Coordinator
from millstream.errors import MillstreamError
from millstream.ring.masks import runs_of
from millstream.ring.ring import NodeId
from millstream.state.pickling import loads
from millstream.wire.calls import UnreachableError
from millstream.wire.messages import NotReadyError, OpenScan, ScanBrokenError, SlotsNotHeldError

_TIMEOUT = 60.0
# Several calls whose answers are lost, one after the other.
_PATIENCE = 5 * _TIMEOUT
_WAIT = 0.05
_OPEN_TIMEOUT = 5.0
_SLOTS_AT_ONCE = 128
Explaining = Callable[[], AbstractContextManager[None]]
_ENDED = "the run has ended and its state with it; read state before stop()"


class RunEndedError(MillstreamError):
    """Something was asked of a run that has ended."""


class Scan(Iterator[tuple[Any, Any]]):
    """All keys of a job with their state, as of one committed ``epoch``.

    Later epochs are committed meanwhile, and do not show. A takeover only takes time, unless the
    last node that still has the state of that epoch is gone; then ``ScanBrokenError`` is raised.
    """

    def __init__(
        self, coordinator: Coordinator, order: OpenScan, explaining: Explaining = nullcontext
    ) -> None:
        self._coordinator = coordinator
        self._order = order
        self._explaining = explaining
        self._items = self._read()

    @property
    def epoch(self) -> int:
        """The epoch that is scanned; −1 before the first."""
        return self._order.committed.epoch

    def __next__(self) -> tuple[Any, Any]:
        with self._explaining():
            item = next(self._items, None)
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Let the nodes forget the epoch; also done at the end."""
        self._items.close()
        self._coordinator.tell_nodes("unscan", self._order.scan)

    def _read(self) -> Generator[tuple[Any, Any], None, None]:
        coordinator = self._coordinator
        left = np.ones(coordinator.roster.placement.ring.slots, dtype=bool)
        deadline = coordinator.net.now() + _PATIENCE
        try:
            while left.any():
                start = int(left.argmax())
                share = coordinator.roster.placement.shares(range(start, len(left)))[0]
                run = next(iter(runs_of(left, share.slots)))
                part = range(run.start, min(run.stop, run.start + _SLOTS_AT_ONCE))
                answer = self._ask(share.owner, part)
                if answer is not None:
                    left[part.start : part.stop] = False
                    for key, value in answer:
                        yield key, loads(value)
                    deadline = coordinator.net.now() + _PATIENCE
                elif coordinator.net.now() > deadline:
                    raise ScanBrokenError(
                        f"nobody gave slots {part.start} to {part.stop - 1} in time"
                    )
        finally:
            coordinator.tell_nodes("unscan", self._order.scan)

    def _ask(self, owner: NodeId, part: range) -> list[tuple[Any, bytes]] | None:
        """What the owner of some slots says of them; None if others own them soon."""
        coordinator = self._coordinator
        if coordinator.closed:
            raise RunEndedError(_ENDED)
        body = (self._order.scan, part, coordinator.roster.placement.version)
        try:
            found: list[tuple[Any, bytes]] = coordinator.ask(owner, "items", body, _TIMEOUT)
            return found
        except UnreachableError:
            coordinator.suspect(owner)
        except SlotsNotHeldError:
            coordinator.net.sleep(_WAIT)  # it replays what it took over
        return None


class StateReader:
    """Reads state while the run goes on; a takeover in between only takes time.

    Reads happen within ``explaining``, which may know better why one failed.
    """

    def __init__(self, coordinator: Coordinator, explaining: Explaining = nullcontext) -> None:
        self._coordinator = coordinator
        self._explaining = explaining

    def get(self, job: int, key: object) -> Any:
        """A key's committed state, or None."""
        with self._explaining():
            self._await_seals()
            answers = self._ask_all("get", lambda ring: (job, key, ring))
        found = [loads(answer) for answer in answers]
        return next((state for state in found if state is not None), None)

    def items(self, job: int) -> Scan:
        """All keys of a job, as they are at the newest commit now."""
        with self._explaining():
            return self._scan(job)

    def _scan(self, job: int) -> Scan:
        self._require_running()
        deadline = self._coordinator.net.now() + _PATIENCE
        while True:
            order = self._open(job)
            if order is not None:
                return Scan(self._coordinator, order, self._explaining)
            if self._coordinator.net.now() > deadline:
                raise ScanBrokenError("not all nodes answered in time")
            self._coordinator.net.sleep(_WAIT)

    def _open(self, job: int) -> OpenScan | None:
        """Open a view on every node, also those with copies; None if not all could."""
        coordinator = self._coordinator
        with coordinator.between_commits() as committed:
            order = OpenScan(f"scan-{next(coordinator.scans)}", job, committed)
            answers = coordinator.ask_all("scan", order, _OPEN_TIMEOUT)
        for node, answer in answers.items():
            if isinstance(answer, UnreachableError):
                coordinator.unanswered(node, answer, "its state")
            elif isinstance(answer, Exception) and not isinstance(answer, NotReadyError):
                raise answer
        if any(isinstance(answer, Exception) for answer in answers.values()):
            coordinator.tell_nodes("unscan", order.scan)
            return None
        return order

    def _await_seals(self) -> None:
        self._require_running()
        committed = self._coordinator.ledger.committed
        self._ask_all("seal", lambda _: committed)

    def _require_running(self) -> None:
        if self._coordinator.closed:
            raise RunEndedError(_ENDED)

    def _ask_all(self, action: str, body: Callable[[int], object]) -> list[Any]:
        """Ask until all nodes have answered under one placement, whose version the body names."""
        coordinator = self._coordinator
        with coordinator.waits.wait("a read of state") as wait:
            while True:
                self._require_running()
                version = coordinator.roster.placement.version
                answers = coordinator.ask_all(action, body(version), _TIMEOUT)
                failed = {n: a for n, a in answers.items() if isinstance(a, Exception)}
                for node, answer in failed.items():
                    if isinstance(answer, UnreachableError):
                        coordinator.unanswered(node, answer, "its state")
                    elif isinstance(answer, SlotsNotHeldError):
                        coordinator.net.sleep(_WAIT)  # it replays what it took over
                    else:
                        raise answer
                if not failed and version == coordinator.roster.placement.version:
                    return list(answers.values())
                wait.because("; ".join(map(str, failed.values())) or "the ring has changed")
