"""Fragments of keyed state: the changes of one or several epochs, merged and as bytes.

A fragment holds absolute values and never changes once it is reduced: it may be merged with others,
and be applied to several copies of its slots. Encoded, it is a sequence of pickles of some thousand
keys each: one pickle of a million keys would stop all threads of the process while it is written,
and while it is read. Only bytes of an authenticated peer may be decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, TypeVar

import pyarrow as pa

from millstream.ring.strides import AT_ONCE
from millstream.state.key_view import Change, Entries
from millstream.state.pickling import canonical, dumps, unpickled

T = TypeVar("T")
_Table = Mapping[int, Mapping[Any, Entries]]
_Packed = tuple[list[int], list[int], list[Any], tuple[str, ...], list[Any]]
_PackedSingles = tuple[list[int], list[int], list[Any], list[Any]]
_values = methodcaller("values")

Visits = list[tuple[int, dict[int, list[Any]]]]


@dataclass(slots=True)
class KeyedFragment:
    """The changes of one or several epochs to some slots. A key has at most one change.

    ``plain`` has the writes of plain changes, which are nearly all and need no ``Change`` object;
    ``other`` has all other changes. ``visits`` lists the keys that were touched at a time, by slot,
    oldest first. In slots of ``whole``, plain writes are all entries that their keys have then.
    ``singles`` has the new values of keys that have one entry, called ``name``, with a plain value.
    """

    plain: dict[int, dict[Any, Entries]] = field(default_factory=dict)
    other: dict[int, dict[Any, Change]] = field(default_factory=dict)
    visits: Visits = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    singles: dict[int, dict[Any, Any]] = field(default_factory=dict)
    name: str | None = None

    def __bool__(self) -> bool:
        """Whether there is any change."""
        tables = (self.plain, self.other, self.singles)
        return any(any(table.values()) for table in tables) or bool(self.visits)

    def add(self, slot: int, key: Any, change: Change | None) -> None:
        """Add the change of a key that has none yet."""
        if change is None:
            return
        if change.plain:
            self.plain.setdefault(slot, {})[key] = change.writes
            self.whole.discard(slot)
        else:
            self.other.setdefault(slot, {})[key] = change

    def take(self, slot: int, key: Any) -> Change | None:
        """Remove the change of a key, and return it."""
        plain = self.plain.get(slot, {}).pop(key, None)
        return self.other.get(slot, {}).pop(key, None) if plain is None else Change(plain)

    def finish(self, partial: set[int]) -> None:
        """Set which slots are whole: all but those where plain writes are parts of entries."""
        self.plain = {slot: writes for slot, writes in self.plain.items() if writes}
        self.singles = {slot: values for slot, values in self.singles.items() if values}
        self.whole = self.plain.keys() - partial

    def expire(
        self, idle: Mapping[int, set[Any]], touched: dict[int, list[Any]], time: int
    ) -> None:
        """Clear idle keys, and add a visit of all keys touched at a time: idle ones too.

        What was written to an idle key remains.
        """
        for slot, keys in idle.items():
            plain, other = self.plain.get(slot, {}), self.other.setdefault(slot, {})
            for key in keys:
                written = other[key].writes if key in other else plain.pop(key, {})
                other[key] = Change(written, cleared=True, plain=False)
            visited = touched.setdefault(slot, [])
            visited.extend(keys.difference(visited))
        if touched:
            self.visits.append((time, dict(touched)))

    def part(self, slots: range) -> KeyedFragment:
        """Its changes to some slots."""
        visits = [(time, _part(visited, slots)) for time, visited in self.visits]
        plain, other = _part(self.plain, slots), _part(self.other, slots)
        singles, whole = _part(self.singles, slots), self.whole.intersection(slots)
        return KeyedFragment(plain, other, visits, whole, singles, self.name)

    def among(self, slots: list[int]) -> KeyedFragment:
        """Its changes to slots that are listed one by one."""
        visits = [(time, dict(among(visited, slots))) for time, visited in self.visits]
        plain, other = dict(among(self.plain, slots)), dict(among(self.other, slots))
        singles, whole = dict(among(self.singles, slots)), self.whole.intersection(slots)
        return KeyedFragment(plain, other, visits, whole, singles, self.name)

    def expanded(self) -> KeyedFragment:
        """The same without singles: their keys have plain writes."""
        if not self.singles:
            return self
        plain, whole, name = dict(self.plain), set(self.whole), self.name
        for slot, values in self.singles.items():
            if slot not in plain:
                whole.add(slot)
            writes = {key: {name: value} for key, value in values.items()}
            plain[slot] = plain.get(slot, {}) | writes
        return KeyedFragment(plain, self.other, self.visits, whole)


def tables_of(fragment: object) -> list[Any]:
    """The large tables of a fragment, to be freed one by one."""
    if not isinstance(fragment, KeyedFragment):
        return []
    tables = (fragment.plain, fragment.other, fragment.singles)
    return [of_slot for table in tables for of_slot in table.values()]


def _part(table: dict[int, T], slots: range) -> dict[int, T]:
    if len(slots) < len(table):
        return {slot: table[slot] for slot in slots if slot in table}
    return {slot: value for slot, value in table.items() if slot in slots}


def among(table: dict[int, T], slots: list[int] | None) -> Iterable[tuple[int, T]]:
    """The items of a table by slot, of some slots or of all."""
    if not table:
        return ()
    if slots is None or len(slots) > len(table):
        chosen = None if slots is None else set(slots)
        return [item for item in table.items() if chosen is None or item[0] in chosen]
    return [(slot, table[slot]) for slot in slots if slot in table]


def visits_of(seen: Mapping[int, Mapping[Any, int]]) -> Visits:
    """The visits that give every key of some slots the given time of last touch."""
    visits: dict[int, dict[int, list[Any]]] = {}
    for slot, times in seen.items():
        for key, time in times.items():
            visits.setdefault(time, {}).setdefault(slot, []).append(key)
    return sorted(visits.items(), key=lambda visit: visit[0])


def encode_keyed(fragment: KeyedFragment) -> bytes:
    """Serialise a fragment of keyed state."""
    return b"".join(map(_encode_part, _parts(fragment)))


def _parts(fragment: KeyedFragment) -> Iterator[KeyedFragment]:
    """Cut a fragment between slots, into parts of not too many keys."""
    weights: dict[int, int] = {}
    tables: list[Mapping[int, Collection[Any]]]
    tables = [fragment.plain, fragment.other, fragment.singles]
    tables += [visited for _, visited in fragment.visits]
    for table in tables:
        for slot, keys in table.items():
            weights[slot] = weights.get(slot, 0) + len(keys)
    if sum(weights.values()) <= AT_ONCE:
        yield fragment
        return
    slots: list[int] = []
    weight = 0
    for slot in sorted(weights):
        if slots and weight + weights[slot] > AT_ONCE:
            yield fragment.among(slots)
            slots, weight = [], 0
        slots.append(slot)
        weight += weights[slot]
    yield fragment.among(slots)


def _encode_part(fragment: KeyedFragment) -> bytes:
    other = {
        slot: {key: change.writes for key, change in changes.items()}
        for slot, changes in fragment.other.items()
    }
    changes = chain.from_iterable(map(dict.values, fragment.other.values()))
    cleared = [at for at, hides in enumerate(map(attrgetter("cleared"), changes)) if hides]
    whole = sorted(fragment.whole)  # by slot: equal fragments have equal bytes
    singles = (fragment.name, *_pack_singles(fragment.singles))
    return dumps((_pack(fragment.plain), _pack(other), cleared, fragment.visits, whole, singles))


def decode_keyed(data: bytes | pa.Buffer) -> KeyedFragment:
    """Read what ``encode_keyed`` wrote."""
    decoded = KeyedFragment()
    for part in map(_decode_part, unpickled(data)):
        decoded.plain.update(part.plain)
        decoded.other.update(part.other)
        decoded.visits += part.visits
        decoded.whole |= part.whole
        decoded.singles.update(part.singles)
        decoded.name = part.name
    return decoded


def _decode_part(read: Any) -> KeyedFragment:
    plain, other, cleared, visits, *more = read  # records of older versions have no more
    hidden = set(cleared)
    numbers = iter(range(len(other[2])))
    changes = {
        slot: {key: Change(new, next(numbers) in hidden, False) for key, new in writes.items()}
        for slot, writes in _unpack(other).items()
    }
    for _, visited in visits:
        for slot, keys in visited.items():
            visited[slot] = canonical(keys)
    found = KeyedFragment(_unpack(plain), changes, visits)
    if more:
        whole, (found.name, *singles) = more
        found.whole, found.singles = set(whole), _unpack_singles(*singles)
    return found


def _pack_singles(singles: dict[int, dict[Any, Any]]) -> _PackedSingles:
    """Slots with their numbers of keys, all keys, and their values."""
    tables = singles.values()
    keys = list(chain.from_iterable(tables))
    return list(singles), list(map(len, tables)), keys, [*chain.from_iterable(map(_values, tables))]


def _unpack_singles(
    slots: list[int], numbers: list[int], keys: list[Any], values: list[Any]
) -> dict[int, dict[Any, Any]]:
    pairs = zip(canonical(keys), values, strict=True)
    return {slot: dict(islice(pairs, n)) for slot, n in zip(slots, numbers, strict=True)}


def _pack(table: _Table) -> _Packed:
    """Slots with their numbers of keys, all keys, and their writes, in columns if possible."""
    keys = list(chain.from_iterable(table.values()))
    writes = list(chain.from_iterable(slot.values() for slot in table.values()))
    names = tuple(writes[0]) if writes else ()
    columns = _columns(writes, names)
    numbers = list(map(len, table.values()))
    if columns is None:
        return list(table), numbers, keys, (), writes
    return list(table), numbers, keys, names, columns


def _columns(writes: list[Entries], names: tuple[str, ...]) -> list[list[Any]] | None:
    """The values of each entry name, if all wrote these names in this order.

    The order is preserved because users see it when they iterate over a key's state.
    """
    if len(names) == 1:
        same = set(map(len, writes)) == {1}
    else:
        same = bool(names) and set(map(tuple, writes)) == {names}
    try:
        return [list(map(itemgetter(name), writes)) for name in names] if same else None
    except KeyError:  # one entry each, but of several names
        return None


def _unpack(packed: _Packed) -> dict[int, dict[Any, Entries]]:
    slots, numbers, keys, names, columns = packed
    writes: list[Entries] = columns
    if names:
        first, *rest = names
        writes = [{first: value} for value in columns[0]]
        for name, column in zip(rest, columns[1:], strict=True):
            for entries, value in zip(writes, column, strict=True):
                entries[name] = value
    pairs = zip(canonical(keys), writes, strict=True)
    return {slot: dict(islice(pairs, n)) for slot, n in zip(slots, numbers, strict=True)}


def merge_keyed(fragments: Sequence[KeyedFragment]) -> KeyedFragment:
    """Merge fragments of consecutive epochs, oldest first, into one with the same effect."""
    merged = KeyedFragment()
    seen: dict[int, dict[Any, int]] = {}
    if not _have_singles_apart(fragments):
        fragments = [fragment.expanded() for fragment in fragments]
    for fragment in fragments:
        for slot, values in fragment.singles.items():
            merged.singles.setdefault(slot, {}).update(values)
        merged.name = fragment.name if fragment.singles else merged.name
        for slot, writes in fragment.plain.items():
            _add_plain(merged, slot, writes, whole=slot in fragment.whole)
        for slot, changes in fragment.other.items():
            _add_other(merged, slot, changes)
        for time, visited in fragment.visits:
            for slot, keys in visited.items():
                seen.setdefault(slot, {}).update(dict.fromkeys(keys, time))
    merged.visits = visits_of(seen)
    return merged


def _have_singles_apart(fragments: Sequence[KeyedFragment]) -> bool:
    """Whether singles have one name, and no slot of them has changes of another kind."""
    slots: set[int] = set().union(*(fragment.singles for fragment in fragments))
    names = {fragment.name for fragment in fragments if fragment.singles}
    return len(names) < 2 and all(
        slots.isdisjoint(fragment.plain) and slots.isdisjoint(fragment.other)
        for fragment in fragments
    )


def _add_plain(
    merged: KeyedFragment, slot: int, writes: Mapping[Any, Entries], *, whole: bool
) -> None:
    other = merged.other.get(slot)
    if whole and slot not in merged.plain:
        merged.whole.add(slot)
    elif not whole:
        merged.whole.discard(slot)
    plain = merged.plain.setdefault(slot, {})
    for key, new in writes.items():
        older = other.get(key) if other else None
        if other and older is not None:
            other[key] = older.then(Change(new))
        else:
            known = plain.get(key)
            plain[key] = new if known is None else known | new


def _add_other(merged: KeyedFragment, slot: int, changes: Mapping[Any, Change]) -> None:
    plain = merged.plain.get(slot, {})
    other = merged.other.setdefault(slot, {})
    for key, change in changes.items():
        known, older = plain.pop(key, None), other.get(key)
        if known is not None:
            older = Change(known)
        other[key] = change if older is None else older.then(change)
