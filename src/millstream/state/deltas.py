"""Deltas: fragments on their way to other copies of their slots, merged and as bytes.

Both forms are pickles, of few large objects: keys and values in lists, one for each entry name
where all keys wrote the same names; rows in Arrow's IPC form. Only an authenticated peer's bytes
may be decoded. A delta is a row of pickles of some thousand keys each: one pickle of a million keys
would stop all threads of the process while it is written, and while it is read.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.keys import NAN
from millstream.ring.strides import AT_ONCE, strides
from millstream.state.blocks import from_bytes, to_bytes
from millstream.state.columns import ColumnFragment, cast_column, in_order, widened
from millstream.state.keyed import Change, Entries, KeyedFragment, visits_of
from millstream.state.pickling import dumps

_Table = Mapping[int, Mapping[Any, Entries]]
_Packed = tuple[list[int], list[int], list[Any], tuple[str, ...], list[Any]]


def encode_keyed(fragment: KeyedFragment) -> bytes:
    """Serialise a fragment of keyed state."""
    return b"".join(map(_encode_part, _parts(fragment)))


def _parts(fragment: KeyedFragment) -> Iterator[KeyedFragment]:
    """Cut a fragment between slots, into parts of not too many keys."""
    weights: dict[int, int] = {}
    tables: list[Mapping[int, Collection[Any]]] = [fragment.plain, fragment.other]
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
    return dumps((_pack(fragment.plain), _pack(other), cleared, fragment.visits))


def decode_keyed(data: bytes | pa.Buffer) -> KeyedFragment:
    """Read what ``encode_keyed`` wrote."""
    whole = KeyedFragment()
    for part in map(_decode_part, unpickled(data)):
        whole.plain.update(part.plain)
        whole.other.update(part.other)
        whole.visits += part.visits
    return whole


def unpickled(data: bytes | pa.Buffer) -> Iterator[Any]:
    """What a row of pickles holds."""
    source = pa.BufferReader(data)
    while source.tell() < source.size():
        yield pickle.load(source)


def _decode_part(read: Any) -> KeyedFragment:
    plain, other, cleared, visits = read
    hidden = set(cleared)
    numbers = iter(range(len(other[2])))
    changes = {
        slot: {key: Change(new, next(numbers) in hidden, False) for key, new in writes.items()}
        for slot, writes in _unpack(other).items()
    }
    for _, visited in visits:
        for slot, keys in visited.items():
            visited[slot] = canonical(keys)
    return KeyedFragment(_unpack(plain), changes, visits)


def _pack(table: _Table) -> _Packed:
    """Slots with their numbers of keys, all keys, and what they wrote, by name if it can be."""
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

    The order is kept because users see it when they go through a key's state.
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


def canonical(keys: list[Any]) -> list[Any]:
    """Unpickled keys as a dictionary finds them: there is just one NaN."""
    kinds = set(map(type, keys))
    return list(map(one_nan, keys)) if float in kinds or tuple in kinds else keys


def one_nan(key: Any) -> Any:
    """An unpickled key, with the one NaN that a dictionary finds."""
    if type(key) is tuple:
        return tuple(map(one_nan, key))
    return NAN if key != key else key


def merge_keyed(fragments: Sequence[KeyedFragment]) -> KeyedFragment:
    """Join fragments of consecutive epochs, oldest first, into one with the same effect."""
    merged = KeyedFragment()
    seen: dict[int, dict[Any, int]] = {}
    for fragment in fragments:
        for slot, writes in fragment.plain.items():
            _add_plain(merged, slot, writes)
        for slot, changes in fragment.other.items():
            _add_other(merged, slot, changes)
        for time, visited in fragment.visits:
            for slot, keys in visited.items():
                seen.setdefault(slot, {}).update(dict.fromkeys(keys, time))
    merged.visits = visits_of(seen)
    return merged


def _add_plain(merged: KeyedFragment, slot: int, writes: Mapping[Any, Entries]) -> None:
    other = merged.other.get(slot)
    plain = merged.plain.setdefault(slot, {})
    for key, new in writes.items():
        older = other.get(key) if other else None
        if other and older is not None:
            other[key] = Change(older.writes | new, older.cleared, False)
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
        if older is None or change.cleared:
            other[key] = change
        else:
            other[key] = Change(older.writes | change.writes, older.cleared, False)


def encode_columns(fragment: ColumnFragment) -> bytes:
    """Serialise a fragment of columnar state."""
    return b"".join(map(_encode_columns, _column_parts(fragment)))


def _column_parts(fragment: ColumnFragment) -> Iterator[ColumnFragment]:
    """Cut a fragment into parts of not too many keys."""
    if len(fragment.keys) + len(fragment.forgotten) <= AT_ONCE:
        yield fragment
        return
    for at in strides(len(fragment.keys)):
        assert fragment.rows is not None
        rows = fragment.rows.slice(at.start, at.stop - at.start)
        keys, slots, times = fragment.keys[at], fragment.slots[at], fragment.times[at]
        yield ColumnFragment(keys, slots, rows, [], times)
    for at in strides(len(fragment.forgotten)):
        yield ColumnFragment.without_rows(fragment.forgotten[at])


def _encode_columns(fragment: ColumnFragment) -> bytes:
    times: npt.NDArray[np.int64] | int = fragment.times
    if len(fragment.times) and bool((fragment.times == fragment.times[0]).all()):
        times = int(fragment.times[0])  # of one epoch, as nearly always
    rows = None if fragment.rows is None else to_bytes(fragment.rows)
    return dumps((fragment.keys, fragment.slots, times, rows, fragment.forgotten))


def decode_columns(data: bytes | pa.Buffer) -> ColumnFragment:
    """Read what ``encode_columns`` wrote."""
    whole = ColumnFragment.without_rows([])
    slots, times, batches = [whole.slots], [whole.times], []
    for keys, of_keys, touched, rows, forgotten in unpickled(data):
        whole.keys += canonical(keys)
        whole.forgotten += canonical(forgotten)
        slots.append(of_keys)
        times.append(np.full(len(keys), touched, np.int64) if isinstance(touched, int) else touched)
        if rows is not None:
            batches.append(from_bytes(rows))
    return ColumnFragment(
        whole.keys,
        np.concatenate(slots),
        concat_rows(batches) if batches else None,
        whole.forgotten,
        np.concatenate(times),
    )


def merge_columns(fragments: Sequence[ColumnFragment]) -> ColumnFragment:
    """Join fragments of consecutive epochs, oldest first, into one with the same effect."""
    last: dict[Any, int] = {}
    forgotten: dict[Any, None] = {}
    parts: list[ColumnFragment] = []
    start = 0
    for fragment in fragments:
        for key in fragment.forgotten:
            last.pop(key, None)
            forgotten[key] = None
        if fragment.keys:
            last.update(zip(fragment.keys, range(start, start + len(fragment.keys)), strict=True))
            start += len(fragment.keys)
            parts.append(fragment)
    gone = [key for key in forgotten if key not in last]
    if not last:
        return ColumnFragment.without_rows(gone)
    at = np.fromiter(last.values(), np.int64, len(last))
    return ColumnFragment(
        list(last),
        np.concatenate([part.slots for part in parts])[at],
        concat_rows([part.rows for part in parts]).take(at),
        gone,
        np.concatenate([part.times for part in parts])[at],
    )


def concat_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join rows as they would meet in the state: columns by name, in types that hold all."""
    schema = batches[0].schema
    batches = [in_order(batch, schema) for batch in batches]
    for batch in batches[1:]:
        schema = widened(schema, batch.schema)
    columns = [
        pa.concat_arrays([cast_column(array, kind) for array in arrays])
        for kind, *arrays in zip(schema.types, *(b.columns for b in batches), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
