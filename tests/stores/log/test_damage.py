"""Damaged bytes are found or do no harm, and never come back as a value."""

from __future__ import annotations

from contextlib import suppress

import pytest

from millstream.stores.log.format import (
    HEAD_BYTES,
    HEADER_BYTES,
    Header,
    Kind,
    decode_header,
    digest_of,
    encode,
    encode_header,
    read_records,
    record_size,
)
from millstream.stores.store import CorruptRecordError, Store
from tests.stores.log.disks import MemoryDisk, abandon, open_log

VALUES = {"b": b"", "c/3": b"three", "d": b"newer"}


def written() -> MemoryDisk:
    """A sealed segment in which one value was replaced, and one key deleted."""
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"d": b"older", "x": b"deleted", "b": b""})
    store.put({"d": b"newer", "c/3": b"three"})
    store.delete(["x"])
    store.close()
    return disk


def read_each(store: Store) -> dict[str, bytes | None]:
    """What each key gives; None for one that is known to be damaged."""
    found: dict[str, bytes | None] = {}
    for key in [*VALUES, "x"]:
        try:
            found.update(store.get([key]))
        except CorruptRecordError:
            found[key] = None
    return found


def test_every_flipped_bit_of_a_segment_is_detected_or_harmless() -> None:
    disk = written()
    [name] = disk.files("segments")
    data = disk.file("segments", name)
    healed = 0
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        store = open_log(disk, "r")
        found = read_each(store)
        damages = list(store.verify())
        data[bit // 8] ^= 1 << bit % 8

        assert damages, bit
        assert set(found) - {"x"} == set(VALUES), bit
        assert {key for key in VALUES if found[key] not in (None, VALUES[key])} == set(), bit
        assert found.get("x") is None, bit
        healed += None not in found.values()
    # Only a bit of a key or a value costs a value: there are two of everything else.
    assert healed >= 8 * (len(data) - sum(len(k) + len(v) for k, v in VALUES.items()) - 20)


def test_every_flipped_bit_of_a_first_value_is_detected_or_harmless() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    assert store.put_if_absent("manifest", b"first")
    [name] = disk.files("once")
    data = disk.file("once", name)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptRecordError):
            assert store.get(["manifest"]) == {"manifest": b"first"}
        assert list(store.verify()), bit
        assert not store.put_if_absent("manifest", b"second")
        data[bit // 8] ^= 1 << bit % 8


def test_damage_is_reported_with_its_file_and_offset() -> None:
    disk = written()
    [name] = disk.files("segments")
    data = disk.file("segments", name)
    at = data.index(b"three")
    data[at] ^= 1
    store = open_log(disk, "r")

    [damage] = store.verify()
    assert damage.key == "c/3"
    assert damage.place.endswith(name)
    assert damage.offset < at < damage.offset + record_size(3, 5)
    with pytest.raises(CorruptRecordError) as raised:
        store.get(["c/3"])
    assert (raised.value.damage.place, raised.value.damage.offset) == (damage.place, damage.offset)


def test_damage_under_an_open_store_is_detected_on_reading() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"a": b"value", "b": b"other"})
    [name] = disk.files("segments")
    data = disk.file("segments", name)
    data[data.index(b"value")] ^= 1

    with pytest.raises(CorruptRecordError):
        store.get(["a"])
    assert store.get(["b"]) == {"b": b"other"}
    abandon(store)


def test_a_tail_that_is_torn_at_any_byte_is_ignored() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"a": b"one"})
    [name] = disk.files("segments")
    data = disk.file("segments", name)
    before = len(data)
    store.put({"a": b"two", "b": b"three"})
    whole = bytes(data)
    first_ends = whole.index(b"three") - record_size(1, 0) // 2 - 1
    abandon(store)
    for size in range(before, len(whole)):
        data[:] = whole[:size]
        reader = open_log(disk, "r")

        assert reader.get(["a", "b"]) == {"a": b"two" if size >= first_ends else b"one"}
        assert not list(reader.verify())
        reader.put({"c": b"later"})
        reader.close()
        disk.erase("segments", next(other for other in disk.files("segments") if other != name))


def test_records_after_a_gap_are_read() -> None:
    header = Header(7, 1)
    keys = [b"a", b"b", b"c", b"d"]
    pieces = encode(
        Kind.VALUE, keys, [b"v" * 50] * 4, map(digest_of, keys), range(1, 5), header.seed
    )
    data = bytearray(b"".join(pieces))
    size = record_size(1, 50)
    data[size + 1 : 3 * size - 1] = bytes(2 * size - 2)

    records, end = read_records(bytes(data), 100, header.seed)

    assert [record.key for record in records] == [b"a", None, b"d"]
    assert (records[1].offset, records[1].length, records[1].intact) == (
        100 + size,
        2 * size,
        False,
    )
    assert end == 100 + len(data)


def test_records_inside_a_value_are_not_read_as_records() -> None:
    inner, outer = Header(1, 1), Header(2, 2)
    hidden = b"".join(encode(Kind.VALUE, [b"x"], [b"old"], [digest_of(b"x")], [1], inner.seed) * 3)
    pieces = encode(Kind.VALUE, [b"a"], [hidden], [digest_of(b"a")], [5], outer.seed)
    data = bytearray(b"".join(pieces))
    data[0] ^= 1  # its head
    data[-HEAD_BYTES] ^= 1  # and its foot

    assert read_records(bytes(data), 0, outer.seed) == ([], 0)


def test_a_header_is_read_from_either_copy() -> None:
    header = Header(salt=2**63 + 5, created=77)
    data = bytearray(encode_header(header))
    assert len(data) == HEADER_BYTES
    for at in (3, HEADER_BYTES - 10):
        data[at] ^= 4
        assert decode_header(bytes(data)) == header
        data[at] ^= 4
    data[3] ^= 4
    data[-10] ^= 4
    assert decode_header(bytes(data)) is None
