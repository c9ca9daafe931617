"""Keyed state in Python dictionaries: a mapping of names to values for every key.

Layers as in Floe, with the epoch in place of a clock: *master* holds what is committed, a
*fragment* (:mod:`millstream.state.keyed_fragments`) holds the changes of one epoch and is private
to its attempt until frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask
from millstream.state.collector import discard, without_collector
from millstream.state.key_view import (
    COPIED_ENTRIES,
    GONE,
    Change,
    Entries,
    copy_entries,
    is_slow_path,
)
from millstream.state.keyed_fragments import (
    KeyedFragment,
    among,
    decode_keyed,
    encode_keyed,
    merge_keyed,
    visits_of,
)
from millstream.state.timer_index import TimerIndex
from millstream.state.timers import timers_in

_NO_KEYS: Final[frozenset[Any]] = frozenset()
_NEVER: Final[dict[Any, int]] = {}


class Lookup(Protocol):
    """The committed keys of a slot, for look-ups."""

    def get(self, key: Any, /) -> Entries | None:
        """A key's entries; not to be changed."""


class KeyedState:
    """The master state of one job on one node, by slot.

    ``read`` turns the committed entries of a key into the value that users read, such as the
    result of an accumulator; by default a copy of the entries.
    """

    step = 2_000

    def __init__(self, read: Callable[[Entries], Any] = copy_entries) -> None:
        self._read = read
        self._timers: TimerIndex | None = None
        self._masters: dict[int, dict[Any, Entries]] = {}
        self._slow_path: dict[int, set[Any]] = {}
        # When each key was last touched, by slot; the longest ago comes first.
        self._seen: dict[int, dict[Any, int]] = {}

    @property
    def slots(self) -> Mapping[int, Mapping[Any, Entries]]:
        """The committed keys of each slot that has any; not to be changed by the caller."""
        return self._masters

    @property
    def slow_path(self) -> Mapping[int, Set[Any]]:
        """Keys with mutable values or many entries, by slot; read through a ``KeyView``."""
        return self._slow_path

    def index_timers(self) -> TimerIndex:
        """Index the timers among the entries that are applied from now on."""
        self._timers = TimerIndex()
        return self._timers

    def lookups(self, keys: Iterable[Any], slots: Iterable[int]) -> Mapping[int, Lookup]:
        """The slots as a reduction of some keys, each with its slot, reads them."""
        return self._masters

    def apply(self, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        """Apply the fragment of a committed epoch, or its part for some slots."""
        chosen = None if slots is None else np.flatnonzero(slots).tolist()
        for slot, writes in among(fragment.plain, chosen):
            self._write(slot, writes)
        for slot, changes in among(fragment.other, chosen):
            self._change(slot, changes)
        for time, visited in fragment.visits:
            for slot, keys in among(visited, chosen):
                self._visit(slot, keys, time)

    def _write(self, slot: int, writes: Mapping[Any, Entries]) -> None:
        if not writes:
            return
        master, slow_path = self._masters.setdefault(slot, {}), self._slow_path.get(slot)
        if self._timers is not None:
            self._timers.write(slot, master, writes)
        for key, new in writes.items():
            entries = master.get(key)
            if entries is None:
                master[key] = entries = new.copy()
            else:
                entries.update(new)
            if len(entries) > COPIED_ENTRIES or (slow_path and key in slow_path):
                self._update_slow_path(slot, key, entries)

    def _change(self, slot: int, changes: Mapping[Any, Change]) -> None:
        master = self._masters.setdefault(slot, {})
        timers = self._timers
        for key, change in changes.items():
            before = {} if timers is None else timers_in(master.get(key, {}))
            entries = None if change.cleared else master.get(key)
            if entries is None:
                entries = {n: v for n, v in change.writes.items() if v is not GONE}
            else:
                for name, value in change.writes.items():
                    if value is GONE:
                        entries.pop(name, None)
                    else:
                        entries[name] = value
            if entries:
                master[key] = entries
            else:
                master.pop(key, None)
            if timers is not None:
                timers.replace(slot, key, before, timers_in(entries))
            self._update_slow_path(slot, key, entries)
        if not master:
            del self._masters[slot]

    def _update_slow_path(self, slot: int, key: Any, entries: Entries) -> None:
        """Update whether a key is on the slow path: that depends on its entries alone."""
        slow_path = self._slow_path.get(slot)
        if is_slow_path(entries):
            if slow_path is None:
                slow_path = self._slow_path[slot] = set()
            slow_path.add(key)
        elif slow_path is not None:
            slow_path.discard(key)
            if not slow_path:
                del self._slow_path[slot]

    def _visit(self, slot: int, keys: list[Any], time: int) -> None:
        master, seen = self._masters.get(slot, {}), self._seen.setdefault(slot, {})
        for key in keys:
            if key not in master:
                seen.pop(key, None)
            elif seen.get(key) != time:  # a merged fragment may repeat what is known
                seen.pop(key, None)
                seen[key] = time
        if not seen:
            del self._seen[slot]

    def idle_since(self, slots: Iterable[int], before: int) -> dict[int, list[Any]]:
        """Keys of these slots whose last touch came before the given time, oldest first."""
        idle: dict[int, list[Any]] = {}
        for slot in slots:
            keys = []
            for key, time in self._seen.get(slot, _NEVER).items():
                if time >= before:
                    break
                keys.append(key)
            if keys:
                idle[slot] = keys
        return idle

    # -- fragments -------------------------------------------------------------------------

    def prepare(self, fragment: KeyedFragment, parts: int) -> KeyedFragment:
        """The same fragment: its tables are by slot."""
        return fragment

    def encode(self, fragment: KeyedFragment) -> bytes:
        """Serialise a fragment."""
        return encode_keyed(fragment)

    def decode(self, data: bytes | pa.Buffer) -> KeyedFragment:
        """Read what ``encode`` wrote."""
        with without_collector():
            return decode_keyed(data)

    def part(self, fragment: KeyedFragment, slots: range) -> KeyedFragment:
        """A fragment's changes to some slots."""
        return fragment.part(slots)

    def merge(self, fragments: Sequence[KeyedFragment]) -> KeyedFragment:
        """Merge fragments of consecutive epochs, oldest first."""
        with without_collector():
            return merge_keyed(fragments)

    def snapshot(self, slots: range) -> KeyedFragment:
        """All entries of some slots, as a fragment that makes empty slots equal to them.

        Entries are copied, values are shared: nothing changes a committed value in place.
        """
        with without_collector():
            return self._snapshot(slots)

    def _snapshot(self, slots: range) -> KeyedFragment:
        taken = KeyedFragment()
        for slot in slots:
            master, slow_path = self._masters.get(slot), self._slow_path.get(slot, _NO_KEYS)
            if master is None:
                continue
            plain = {key: entries.copy() for key, entries in master.items() if key not in slow_path}
            if plain:
                taken.plain[slot] = plain
            if len(plain) < len(master):
                taken.other[slot] = {
                    key: Change(entries.copy(), plain=False)
                    for key, entries in master.items()
                    if key in slow_path
                }
        taken.visits = visits_of({slot: self._seen[slot] for slot in slots if slot in self._seen})
        return taken

    def drop(self, slots: SlotMask) -> None:
        """Remove all keys of some slots."""
        if self._timers is not None:
            self._timers.drop(np.flatnonzero(slots).tolist())
        for slot in np.flatnonzero(slots).tolist():
            self._slow_path.pop(slot, None)
            for tables in (self._masters, self._seen):
                if slot in tables:
                    discard(tables.pop(slot))

    def get(self, slot: int, key: Any) -> Any:
        """What a user reads for a key, or None."""
        entries = self._masters.get(slot, {}).get(key)
        return None if entries is None else self._read(entries)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The keys of some slots with what a user reads for each."""
        for slot in np.flatnonzero(slots).tolist():
            for key, entries in self._masters.get(slot, {}).items():
                yield key, self._read(entries)

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots."""
        return int(self.counts(slots).sum())

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order."""
        at = np.flatnonzero(slots).tolist()
        return np.fromiter((len(self._masters.get(slot, ())) for slot in at), np.int64, len(at))
