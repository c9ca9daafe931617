"""Reads the committed state of a run from the nodes that own it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.service import Coordinator
from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.key_types import NULL
from millstream.ring.keys import canonical_key, canonical_type, encode_keys
from millstream.ring.masks import runs_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.pickling import loads
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import Commit
from millstream.wire.persistence import NotReadyError
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.scan_filters import ScanFilter
from millstream.wire.state_reads import (
    CloseScan,
    FoundStates,
    GetStates,
    OpenScan,
    ReadScan,
    ScanBrokenError,
)
from millstream.wire.timeouts import RETRY_PAUSE

A = TypeVar("A")
_READ_TIMEOUT = 60.0
# Several calls in a row may lose their answers.
_SCAN_TIMEOUT = 5 * _READ_TIMEOUT
_SLOTS_AT_ONCE = 128
_KEYS_AT_ONCE = 1_000
_UNREAD = -2
Explaining = Callable[[], AbstractContextManager[None]]
_ENDED = "the run has ended and its state with it; read state before stop()"


class Scan(Iterator[tuple[Any, Any]]):
    """All keys of a job with their state, as of one committed ``epoch``.

    Epochs that are committed meanwhile do not show. A takeover delays the scan, unless the last
    node with the state of that epoch is dead; then ``ScanBrokenError`` is raised.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        opened: OpenScan,
        explaining: Explaining = nullcontext,
        where: ScanFilter | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._where = where
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
        version = coordinator.roster.placement.version
        request = ReadScan(self._opened.scan, part, version, self._where)
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
        lookup = _Lookup(job, keys, kind, slots)
        if lookup.is_empty:
            return States(ledger.committed.epoch, lookup.values)
        with self._coordinator.waits.wait("a read of state") as wait:
            while not lookup.is_done:
                self._require_running()
                wait.because(self._look_up(lookup))
        return States(lookup.epoch, lookup.values)

    def _look_up(self, lookup: _Lookup) -> str:
        """Ask the owners for what is missing; return why something still is."""
        coordinator = self._coordinator
        placement, committed = coordinator.roster.placement, coordinator.ledger.committed
        requests = lookup.requests(placement, committed)
        calls = [
            partial(coordinator.rpc.call, owner, request, _READ_TIMEOUT)
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
            elif not isinstance(answer, SlotsNotHeldError | NotReadyError):
                raise answer
            if isinstance(answer, Exception):
                problems.append(str(answer))
        if problems:
            coordinator.net.sleep(RETRY_PAUSE)  # the ring changes, or a node replays logs
        return "; ".join(problems) or "an epoch was committed meanwhile"

    def _scan(self, job: int, where: ScanFilter | None) -> Scan:
        self._require_running()
        deadline = self._coordinator.net.now() + _SCAN_TIMEOUT
        while True:
            opened = self._open(job)
            if opened is not None:
                return Scan(self._coordinator, opened, self._explaining, where)
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

    def _require_running(self) -> None:
        if self._coordinator.is_closed:
            raise RunEndedError(_ENDED)


@dataclass(frozen=True)
class States:
    """The states of keys at a committed ``epoch`` (−1 before the first); None for unknown keys."""

    epoch: int
    values: list[Any]


class _Lookup:
    """Keys whose states are looked up, until all of them are of one epoch."""

    def __init__(self, job: int, keys: Sequence[object], kind: pa.DataType, slots: int) -> None:
        self._job = job
        target = canonical_type(kind)
        if target == NULL:
            self._keys: list[Any] = list(keys)
            self._asked = [at for at, key in enumerate(keys) if key is None]
        else:
            self._keys = [canonical_key(key, target) for key in keys]
            self._asked = list(range(len(keys)))
        some = [self._keys[at] for at in self._asked]
        self._slots = slot_of(hash_column(encode_keys(some, target)), slots)
        self._epochs = np.full(len(some), _UNREAD)
        self.values: list[Any] = [None] * len(keys)
        self.epoch = _UNREAD

    @property
    def is_empty(self) -> bool:
        """Whether no node can have any of the keys."""
        return not self._asked

    @property
    def is_done(self) -> bool:
        """Whether every key was read, at the newest epoch that any was read at."""
        return bool((self._epochs == self.epoch).all()) and self.epoch != _UNREAD

    def requests(
        self, placement: Placement, committed: Commit
    ) -> list[tuple[NodeId, GetStates, npt.NDArray[np.int64]]]:
        """What to ask the owners of keys that were not read, or at an older epoch than others."""
        missing = np.flatnonzero((self._epochs != self.epoch) | (self.epoch == _UNREAD))
        owners = placement.ring.table[self._slots[missing]]
        found = []
        for owner in np.unique(owners).tolist():
            mine = missing[owners == owner]
            for start in range(0, len(mine), _KEYS_AT_ONCE):
                part = mine[start : start + _KEYS_AT_ONCE]
                keys = tuple([self._keys[self._asked[at]] for at in part.tolist()])
                slots = tuple(self._slots[part].tolist())
                request = GetStates(self._job, keys, slots, placement.version, committed)
                found.append((placement.ring.nodes[owner], request, part))
        return found

    def found(self, which: npt.NDArray[np.int64], answer: FoundStates) -> None:
        """Take an answer; one that is older than others is asked for again."""
        self.epoch = max(self.epoch, answer.epoch)
        self._epochs[which] = answer.epoch
        for at, value in zip(which.tolist(), loads(answer.values), strict=True):
            self.values[self._asked[at]] = value


def _outcome(call: Callable[[], A]) -> A | Exception:
    try:
        return call()
    except Exception as problem:
        return problem


def _close(coordinator: Coordinator, opened: OpenScan) -> None:
    coordinator.rpc.notify(coordinator.roster.nodes, CloseScan(opened.scan))
