"""A key that timers fire for several times in one epoch, or that was reduced in it before.

Each call sees the changes of the earlier ones. They are applied in place: the cost of a call
depends on what it changes, not on how many timers and entries its key has.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

from millstream.state.immutable import SCALARS
from millstream.state.key_view import GONE, Change, Entries, KeyView
from millstream.state.timers import TimedView, TimerClock, TimerEntry, Timers, is_timer


class _FiringView(TimedView):
    """The view of one call; closed, it gives the changes of entries alone."""

    __slots__ = ("__weakref__",)

    def __init__(self, entries: Entries, timers: Timers) -> None:
        KeyView.__init__(self, entries)
        self._timers = timers

    def close(self) -> Change | None:
        return KeyView.close(self)


class FiringKey:
    """The entries and timers of a key as committed, with the changes of the epoch so far."""

    __slots__ = (
        "_cleared",
        "_entries",
        "_kept",
        "_last",
        "_latest",
        "_timers",
        "_writes",
        "waiting",
    )

    def __init__(self, base: Entries | None, change: Change) -> None:
        older = {} if change.cleared or not base else base
        found = {n: v for n, v in {**older, **change.writes}.items() if v is not GONE}
        self._entries, waiting = _apart(found)
        self.waiting: dict[TimerEntry, int] = waiting
        self._writes, self._timers = _apart(change.writes)
        self._cleared = change.cleared
        self._last: ReferenceType[TimedView] | None = None
        self._kept = False  # whether an earlier view of these entries is still in use
        self._latest: Change | None = None

    def view(self, clock: TimerClock, fired: TimerEntry) -> TimedView:
        """What ``on_timer`` sees when a timer fires."""
        self._apply()
        view = _FiringView(self._entries, Timers(self.waiting, clock, fired=fired))
        self._last = ref(view)
        return view

    def take(self, change: Change | None, view: TimedView) -> None:
        """Take the changes that a call has made."""
        self._latest = change
        self._timers.update(view.timers.changes)

    def _apply(self) -> None:
        change, self._latest = self._latest, None
        if self._last is not None and self._last() is not None:
            self._kept = True  # such as one in an output
        if change is None:
            return
        if change.cleared:
            self._cleared, self._entries, self._writes = True, {}, {}
        elif self._kept:
            self._entries = self._entries.copy()
        self._kept = False
        for name, value in change.writes.items():
            self._writes[name] = value
            if value is GONE:
                self._entries.pop(name, None)
            else:
                self._entries[name] = value

    def change(self) -> Change:
        """All changes of the epoch."""
        self._apply()
        if self._cleared:
            return Change(self._writes | self.waiting, True, False)
        writes = self._writes | self._timers
        return Change(writes, False, SCALARS.issuperset(map(type, writes.values())))


def _apart(entries: Entries) -> tuple[Entries, dict[Any, Any]]:
    """Entries that are no timers, and those that are."""
    timers = {name: value for name, value in entries.items() if is_timer(name)}
    return {name: value for name, value in entries.items() if name not in timers}, timers
