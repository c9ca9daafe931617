"""Slots in parts of few enough keys to be encoded in one go."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.ring.ring import partition_slots

# Encoded while no other thread reduces: a few milliseconds.
_KEYS_AT_ONCE = 2_000


def split_by_keys(slots: range, keys: int) -> Iterator[range]:
    """Split slots that hold so many keys, assuming that keys are spread evenly."""
    parts = max(1, min(len(slots), -(-keys // _KEYS_AT_ONCE)))
    for part in partition_slots(len(slots), parts):
        yield range(slots.start + part.start, slots.start + part.stop)
