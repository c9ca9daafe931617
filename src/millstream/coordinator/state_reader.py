"""Reads the committed state of a run from the nodes that own it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.service import Coordinator
from millstream.ring.masks import runs_of
from millstream.ring.ring import NodeId
from millstream.state.pickling import loads
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import Seal
from millstream.wire.persistence import NotReadyError
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.request import Request
from millstream.wire.state_reads import CloseScan, GetState, OpenScan, ReadScan, ScanBrokenError
from millstream.wire.timeouts import RETRY_PAUSE

A = TypeVar("A")
_READ_TIMEOUT = 60.0
# Several calls in a row may lose their answers.
_SCAN_TIMEOUT = 5 * _READ_TIMEOUT
_SLOTS_AT_ONCE = 128
Explaining = Callable[[], AbstractContextManager[None]]
_ENDED = "the run has ended and its state with it; read state before stop()"


class Scan(Iterator[tuple[Any, Any]]):
    """All keys of a job with their state, as of one committed ``epoch``.

    Epochs that are committed meanwhile do not show. A takeover delays the scan, unless the last
    node with the state of that epoch is dead; then ``ScanBrokenError`` is raised.
    """

    def __init__(
        self, coordinator: Coordinator, opened: OpenScan, explaining: Explaining = nullcontext
    ) -> None:
        self._coordinator = coordinator
        self._opened = opened
        self._explaining = explaining
        self._items = self._read()

    @property
    def epoch(self) -> int:
        """The epoch of the scan; −1 before the first."""
        return self._opened.committed.epoch

    def __next__(self) -> tuple[Any, Any]:
        with self._explaining():
            item = next(self._items, None)
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Close the views on all nodes; also done at the end."""
        self._items.close()
        _close(self._coordinator, self._opened)

    def _read(self) -> Generator[tuple[Any, Any], None, None]:
        coordinator = self._coordinator
        unread = np.ones(coordinator.roster.placement.ring.slots, dtype=bool)
        deadline = coordinator.net.now() + _SCAN_TIMEOUT
        try:
            while unread.any():
                start = int(unread.argmax())
                share = coordinator.roster.placement.shares(range(start, len(unread)))[0]
                run = next(iter(runs_of(unread, share.slots)))
                part = range(run.start, min(run.stop, run.start + _SLOTS_AT_ONCE))
                answer = self._read_part(share.owner, part)
                if answer is not None:
                    unread[part.start : part.stop] = False
                    for key, value in answer:
                        yield key, loads(value)
                    deadline = coordinator.net.now() + _SCAN_TIMEOUT
                elif coordinator.net.now() > deadline:
                    raise ScanBrokenError(
                        f"slots {part.start} to {part.stop - 1} were not read in time"
                    )
        finally:
            _close(coordinator, self._opened)

    def _read_part(self, owner: NodeId, part: range) -> list[tuple[Any, bytes]] | None:
        """Read some slots from their owner; None if that has to be retried."""
        coordinator = self._coordinator
        if coordinator.is_closed:
            raise RunEndedError(_ENDED)
        request = ReadScan(self._opened.scan, part, coordinator.roster.placement.version)
        try:
            return coordinator.rpc.call(owner, request, _READ_TIMEOUT)
        except UnreachableError:
            coordinator.investigate(owner)
        except SlotsNotHeldError:
            coordinator.net.sleep(RETRY_PAUSE)  # it replays logs
        return None


class StateReader:
    """Reads state while epochs run; a takeover delays a read.

    Reads happen within ``explaining``, which may raise a better explanation of a failure.
    """

    def __init__(self, coordinator: Coordinator, explaining: Explaining = nullcontext) -> None:
        self._coordinator = coordinator
        self._explaining = explaining

    def get(self, job: int, key: object) -> Any:
        """A key's committed state, or None."""
        with self._explaining():
            self._await_seals()
            answers = self._call_all(lambda ring: GetState(job, key, ring))
        states = [loads(answer) for answer in answers]
        return next((state for state in states if state is not None), None)

    def items(self, job: int) -> Scan:
        """Scan all keys of a job, as of the newest commit."""
        with self._explaining():
            return self._scan(job)

    def _scan(self, job: int) -> Scan:
        self._require_running()
        deadline = self._coordinator.net.now() + _SCAN_TIMEOUT
        while True:
            opened = self._open(job)
            if opened is not None:
                return Scan(self._coordinator, opened, self._explaining)
            if self._coordinator.net.now() > deadline:
                raise ScanBrokenError("not all nodes answered in time")
            self._coordinator.net.sleep(RETRY_PAUSE)

    def _open(self, job: int) -> OpenScan | None:
        """Open a view on every node, also those with copies; None if not all succeeded."""
        coordinator, roster = self._coordinator, self._coordinator.roster
        with coordinator.between_commits() as committed:
            name, version = f"scan-{next(coordinator.scan_numbers)}", roster.placement.version
            request = OpenScan(name, job, committed, version)
            answers = coordinator.rpc.call_all(roster.nodes, request)
        for node, answer in answers.items():
            if isinstance(answer, UnreachableError):
                coordinator.report_unanswered(node, answer, "its state")
            elif isinstance(answer, Exception) and not isinstance(answer, NotReadyError):
                raise answer
        if any(isinstance(answer, Exception) for answer in answers.values()):
            _close(coordinator, request)
            return None
        return request

    def _await_seals(self) -> None:
        self._require_running()
        committed = self._coordinator.ledger.committed
        self._call_all(lambda _: Seal(committed))

    def _require_running(self) -> None:
        if self._coordinator.is_closed:
            raise RunEndedError(_ENDED)

    def _call_all(self, request: Callable[[int], Request[A]]) -> list[A]:
        """Call all nodes until they have answered under one placement, whose version it gets."""
        coordinator = self._coordinator
        with coordinator.waits.wait("a read of state") as wait:
            while True:
                self._require_running()
                version = coordinator.roster.placement.version
                nodes = coordinator.roster.nodes
                answers = coordinator.rpc.call_all(nodes, request(version), _READ_TIMEOUT)
                failed = {n: a for n, a in answers.items() if isinstance(a, Exception)}
                for node, problem in failed.items():
                    if isinstance(problem, UnreachableError):
                        coordinator.report_unanswered(node, problem, "its state")
                    elif isinstance(problem, SlotsNotHeldError):
                        coordinator.net.sleep(RETRY_PAUSE)  # it replays logs
                    else:
                        raise problem
                if not failed and version == coordinator.roster.placement.version:
                    return [a for a in answers.values() if not isinstance(a, Exception)]
                wait.because("; ".join(map(str, failed.values())) or "the ring has changed")


def _close(coordinator: Coordinator, opened: OpenScan) -> None:
    coordinator.rpc.notify(coordinator.roster.nodes, CloseScan(opened.scan))
