"""Shuffle partitions: runs of slots, cut from a placement.

A partition whose slots have one owner is one unit of work for one node. An owner whose slots are in
several runs has several partitions, but reduces one at a time: so they share a reduce task, and
there are as many tasks as nodes that can reduce. When an epoch is cut, and what a task does, is
decided by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

from millstream.errors import ConfigError
from millstream.ring.placement import Placement
from millstream.ring.ring import partition_slots


def partition_starts(placement: Placement, least: int, most: int) -> tuple[int, ...]:
    """Return the first slot of each partition, ``least`` to ``most`` of them.

    Every owner's run of slots is a partition. If there are fewer runs than ``least``, the longest
    are cut into equal parts, down to single slots; if there are more than ``most``, neighbours are
    joined, the shortest first, and such a partition has several owners.
    """
    if not 1 <= least <= most:
        raise ConfigError(f"least must be between 1 and most, got {least} and {most}")
    slots, runs = placement.ring.slots, (0, *placement.cuts)
    if len(runs) > most:
        return _joined(runs, slots, most)
    count = min(least, slots)
    return _divided(runs, slots, count) if len(runs) < count else runs


def tasks_of(placement: Placement, starts: Sequence[int], least: int) -> tuple[int, ...]:
    """Return the reduce task of each partition, numbered from 0 in the order of first slots.

    Partitions of one owner share a task. With fewer owners than ``least``, each has several tasks,
    as far as it has partitions, which are dealt out to them in turn.
    """
    owners = placement.ring.table[list(starts)].tolist()
    each = -(-least // len(set(owners)))
    seen: Counter[int] = Counter()
    numbers: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for owner in owners:
        found.append(numbers.setdefault((owner, seen[owner] % each), len(numbers)))
        seen[owner] += 1
    return tuple(found)


def _divided(runs: Sequence[int], slots: int, count: int) -> tuple[int, ...]:
    """Cut the longest runs into equal parts, until there are so many."""
    equal = [part.start for part in partition_slots(slots, count)]
    if set(runs) <= set(equal):
        return tuple(equal)  # no part is longer than another by more than a slot
    lengths = [stop - start for start, stop in pairwise((*runs, slots))]
    parts = [1] * len(runs)
    longest = [(-float(length), at) for at, length in enumerate(lengths)]
    heapify(longest)
    for _ in range(count - len(runs)):
        at = longest[0][1]
        parts[at] += 1
        heapreplace(longest, (-lengths[at] / parts[at], at))
    return tuple(
        start + part.start
        for start, length, into in zip(runs, lengths, parts, strict=True)
        for part in partition_slots(length, into)
    )


def _joined(runs: Sequence[int], slots: int, count: int) -> tuple[int, ...]:
    """Join the two neighbours that are shortest together, until so many runs are left."""
    stops = dict(pairwise((*runs, slots)))
    starts = {stop: start for start, stop in stops.items()}
    pairs = [(stops[middle] - start, start, middle) for start, middle in pairwise(runs)]
    heapify(pairs)
    while len(stops) > count:
        length, start, middle = heappop(pairs)
        if stops.get(start) != middle or stops.get(middle) != start + length:
            continue  # one of the two has been joined with another since
        stop = stops[start] = stops.pop(middle)
        starts[stop] = start
        if stop in stops:
            heappush(pairs, (stops[stop] - start, start, stop))
        if start in starts:
            heappush(pairs, (stop - starts[start], starts[start], start))
    return tuple(stops)
