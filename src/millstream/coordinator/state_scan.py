"""A scan of a job's state as of one committed epoch, while slots move and nodes fail."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.service import Coordinator
from millstream.ring.masks import SlotMask, common, runs_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.pickling import loads
from millstream.wire.calls import UnreachableError
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.scan_filters import ScanFilter
from millstream.wire.state_reads import CloseScan, OpenScan, ReadScan, ScanBrokenError
from millstream.wire.timeouts import RETRY_PAUSE

READ_TIMEOUT = 60.0
# Several calls in a row may lose their answers.
SCAN_TIMEOUT = 5 * READ_TIMEOUT
_BROKEN_AFTER = 5.0  # seconds in which nobody has the epoch of the scan
_SLOTS_AT_ONCE = 128
ENDED = "the run has ended and its state with it; read state before stop()"
Explaining = Callable[[], AbstractContextManager[None]]
Part = tuple[range, list[NodeId]]
"""Slots to be read at once, and the nodes that may have them, the owner first."""


class Scan(Iterator[tuple[Any, Any]]):
    """All keys of a job with their state, as of one committed ``epoch``.

    Epochs that are committed meanwhile do not show. A takeover or a move delays the scan, unless
    the last node with the state of that epoch is dead; then ``ScanBrokenError`` is raised.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        opened: OpenScan,
        placement: Placement,
        explaining: Explaining = nullcontext,
        where: ScanFilter | None = None,
    ) -> None:
        """``placement`` is the one under which the views were opened."""
        self._coordinator = coordinator
        self._opened = opened
        self._placement = placement
        self._explaining = explaining
        self._where = where
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
        close_views(self._coordinator, self._opened)

    def _read(self) -> Generator[tuple[Any, Any], None, None]:
        now = self._coordinator.net.now
        unread = np.ones(self._placement.ring.slots, dtype=bool)
        since = now()
        try:
            while unread.any():
                part, nodes = self._next_part(unread)
                answer = self._read_part(part, nodes, now() - since)
                if answer is not None:
                    unread[part.start : part.stop] = False
                    for key, value in answer:
                        yield key, loads(value)
                    since = now()
                elif now() - since > SCAN_TIMEOUT:
                    raise ScanBrokenError(
                        f"slots {part.start} to {part.stop - 1} were not read in time"
                    )
        finally:
            close_views(self._coordinator, self._opened)

    def _next_part(self, unread: SlotMask) -> Part:
        """The next slots, which one node has as their owner, and which one had."""
        rest = range(int(unread.argmax()), len(unread))
        now = self._coordinator.roster.placement.shares(rest)[0]
        then = self._placement.shares(rest)[0]
        run = next(iter(runs_of(unread, common(now.slots, then.slots))))
        holders = dict.fromkeys([now.owner, then.owner, *then.copies, *now.copies])
        part = range(run.start, min(run.stop, run.start + _SLOTS_AT_ONCE))
        return part, list(holders)

    def _read_part(
        self, part: range, nodes: list[NodeId], waited: float
    ) -> list[tuple[Any, bytes]] | None:
        """Read some slots from whoever has them; None if that has to be retried."""
        coordinator = self._coordinator
        broken: ScanBrokenError | None = None
        for node in nodes:
            if coordinator.is_closed:
                raise RunEndedError(ENDED)
            if node not in coordinator.roster.nodes:
                continue
            version = coordinator.roster.placement.version
            request = ReadScan(self._opened.scan, part, version, self._where)
            try:
                return coordinator.rpc.call(node, request, READ_TIMEOUT)
            except UnreachableError:
                coordinator.investigate(node)
                return None
            except ScanBrokenError as problem:  # it joined later, or is past the epoch
                broken = problem
            except SlotsNotHeldError:
                continue  # it replays logs, or never had them
        if broken is not None and waited > _BROKEN_AFTER:
            raise broken
        coordinator.net.sleep(RETRY_PAUSE)
        return None


def close_views(coordinator: Coordinator, opened: OpenScan) -> None:
    """Close the views of a scan, on all nodes."""
    coordinator.rpc.notify(coordinator.roster.nodes, CloseScan(opened.scan))
