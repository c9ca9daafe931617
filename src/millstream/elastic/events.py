"""Events: what happened to the members and slots of a run, and why, for people and tools."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_RETAINED = 1000


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened: ``kind`` is for tools, ``text`` for people.

    The events of a run are numbered from 1. ``time`` is in seconds of the clock of the log,
    ``epoch`` the newest committed one.
    """

    time: float
    epoch: int
    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)
    number: int = 0


class EventLog:
    """The newest events of a run; safe for use by several threads."""

    def __init__(self, clock: Callable[[], float], epoch: Callable[[], int]) -> None:
        self._clock = clock
        self._epoch = epoch
        self._events: deque[Event] = deque(maxlen=_RETAINED)
        self._newest = 0
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Event], None]] = []

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener``, which raises nothing, with every event from now on."""
        self._listeners.append(listener)

    def add(self, kind: str, text: str, facts: Mapping[str, object] | None = None) -> Event:
        """Add an event that happens now."""
        now, epoch = self._clock(), self._epoch()
        with self._lock:
            self._newest += 1
            event = Event(
                time=now,
                epoch=epoch,
                kind=kind,
                text=text,
                facts=facts or {},
                number=self._newest,
            )
            self._events.append(event)
        for listener in self._listeners:
            listener(event)
        return event

    def all(self) -> list[Event]:
        """The retained events, oldest first."""
        with self._lock:
            return list(self._events)
