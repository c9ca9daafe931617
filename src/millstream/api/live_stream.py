"""The live stream: server-sent events with what changed in the snapshot, and with new events.

Snapshots are made only while somebody listens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from typing import Any

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool

from millstream.api.contract import MOST_EVENTS, Snapshot, SnapshotChange
from millstream.api.served_run import ServedRun
from millstream.errors import MillstreamError

_EVERY = 0.5
_ALIVE_EVERY = 10.0
_MOST = 32
_PARTS = tuple(each.name for each in fields(Snapshot) if each.name not in ("number", "time"))


class LiveStreams:
    """Streams of one run; all of them end when the run cannot be described any more."""

    def __init__(
        self,
        run: ServedRun,
        clock: Callable[[], float] = time.time,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_ending`` tells whether the server ends, which must not wait for streams."""
        self._run = run
        self._is_ending = is_ending
        self._clock = clock
        self._open = 0

    @property
    def are_full(self) -> bool:
        """Whether no other stream can be opened."""
        return self._open >= _MOST

    async def messages(self, since: int | None, expires: float) -> AsyncIterator[bytes]:
        """The messages of a new stream, until its token expires."""
        self._open += 1
        try:
            async for message in self._messages(since, expires):
                yield message
        finally:
            self._open -= 1

    async def _messages(self, since: int | None, expires: float) -> AsyncIterator[bytes]:
        before: Snapshot | None = None
        sent = self._clock()
        if since is None:
            since = (await run_in_threadpool(self._run.events, 2**53, 1)).newest
        while self._clock() < expires and not self._is_ending():
            try:
                now = await run_in_threadpool(self._run.snapshot)
                events = await run_in_threadpool(self._run.events, since, MOST_EVENTS)
            except MillstreamError:  # it is ending, or has not begun
                yield b": nothing to show\n\n"
                return
            if now is not before:
                yield _message("snapshot", now.number, change(before, now))
                before, sent = now, self._clock()
            for event in events.events:
                yield _message("event", event.number, event)
                sent = self._clock()
            since = events.newest
            if self._clock() - sent > _ALIVE_EVERY:
                yield b": alive\n\n"
                sent = self._clock()
            await anyio.sleep(_EVERY)


def change(before: Snapshot | None, now: Snapshot) -> SnapshotChange:
    """The parts that differ between two snapshots."""
    parts: dict[str, Any] = {
        name: getattr(now, name)
        for name in _PARTS
        if before is None or getattr(before, name) != getattr(now, name)
    }
    return SnapshotChange(number=now.number, time=now.time, parts=parts)


def _message(kind: str, number: int, data: object) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind.encode(), number, msgspec.json.encode(data))
