"""Serves reads of committed state: single keys, and scans of a job as of one epoch.

A read never waits for a whole merge: the slots that it needs are merged first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.node.key_batches import split_by_keys
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.scan_views import shown_items
from millstream.node.slot_operations import SlotOperations
from millstream.state.pickling import dumps
from millstream.wire.commit import Commit
from millstream.wire.feed import FeedRefusedError
from millstream.wire.net import Net
from millstream.wire.persistence import NotReadyError
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.state_reads import CloseScan, FoundStates, GetStates, OpenScan, ReadScan
from millstream.wire.timeouts import POLL_PAUSE

_MERGE_TIMEOUT = 10.0


class ReadService:
    """Serves reads of one node."""

    def __init__(
        self,
        machine: NodeMachine,
        net: Net,
        locks: Locks,
        operations: SlotOperations,
        catch_up: Callable[[int, Commit], None],
        require_sound: Callable[[], None],
    ) -> None:
        """``catch_up`` makes the node learn of a ring and a commit before it answers."""
        self._machine = machine
        self._net = net
        self._metadata = locks.metadata
        self._operations = operations
        self._catch_up = catch_up
        self._require_sound = require_sound

    def _follow(self, ring: int, committed: Commit) -> None:
        """Catch up; a node that was fenced meanwhile leaves the read to the new owners."""
        try:
            self._catch_up(ring, committed)
        except FeedRefusedError as fenced:
            raise SlotsNotHeldError(fenced.reason) from None

    def get(self, request: GetStates) -> FoundStates:
        # Slots that were assigned to this node under a newer ring would look empty here.
        self._follow(request.ring, request.committed)
        store, slots = self._machine.store, request.slots
        within = range(min(slots), max(slots) + 1)
        self._operations.restore(within)
        self._await_merged(within, self._machine.committed.epoch)
        with self._metadata:
            self._require_sound()
            self._machine.require_current(within)
            epoch = self._machine.committed.epoch
            values = store.get_many(request.job, request.keys, slots)
        return FoundStates(epoch, dumps(values))  # outside of the lock: these are copies

    def _await_merged(self, slots: range, epoch: int) -> None:
        """Have slots merged before others, and wait until they are at an epoch: a few steps.

        After a timeout the caller finds them behind, and rejects the read.
        """
        store, deadline = self._machine.store, self._net.now() + _MERGE_TIMEOUT
        while store.is_merging and store.is_behind(slots, epoch) and self._net.now() < deadline:
            store.prioritise(slots)
            self._net.sleep(POLL_PAUSE)

    def open_scan(self, request: OpenScan) -> None:
        commit = request.committed
        self._follow(request.ring, commit)
        with self._metadata:
            self._machine.store.require_job(request.job)
            if self._machine.committed != commit:
                raise NotReadyError(f"node {self._machine.node} is past epoch {commit.epoch}")
            now = self._net.now()
            self._machine.store.views.open(request.scan, request.job, commit.epoch, now)

    def close_scan(self, request: CloseScan) -> None:
        with self._metadata:
            self._machine.store.views.close(request.scan)

    def read_scan(self, request: ReadScan) -> list[tuple[Any, bytes]]:
        slots, store = request.slots, self._machine.store
        self._follow(request.ring, self._machine.committed)
        self._operations.restore(slots)
        self._require_sound()
        with self._metadata:
            view = store.views.of(request.scan, slots.start, self._net.now())
            keys = store.most_keys(slots)
        self._await_merged(slots, view.epoch)
        items: list[tuple[Any, bytes]] = []
        for part in split_by_keys(slots, keys):
            with self._metadata:
                fragments = list(store.views.parts(view, part, store.holdings.through))
            # Unpickled and pickled again outside of the lock.
            shown = shown_items(partial(store.scratch, view.job), iter(fragments), store.slots)
            chosen = shown if request.where is None else request.where.select(shown)
            items += [(key, dumps(value)) for key, value in chosen]
        return items
