"""What a writer does to a store: nine calls of ten write, one reads, and each is timed.

After that it only reads for a while, as one does after a restart. A call is a batch of different
keys, drawn evenly from those that the writer owns; all of them have a value before. What is read is
checked: it is the value of its key.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from unittest.mock import patch

from millstream.stores.registry import open_store
from millstream.stores.store import Store

VALUE_BYTES = 1024
_NUMBER_BYTES = 8
_BODIES = 256
_LOADED_AT_ONCE = 1_000
_CALLS_PER_READ = 10
_WARM_UP = 20
_READING = 0.2  # of the time for writing and reading: then there is only reading


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of one writer: it owns every ``step``-th of the keys, from ``first`` on."""

    url: str
    writer: str
    keys: int
    first: int = 0
    step: int = 1
    batch: int
    seconds: float
    calls: int  # at least so many, however long they take
    seed: int = 0


@dataclass(frozen=True)
class Timed:
    """The seconds that calls took; all had batches of the same size."""

    batch: int
    puts: list[float] = field(default_factory=list)
    gets: list[float] = field(default_factory=list)  # in between
    later_gets: list[float] = field(default_factory=list)  # while nothing was written

    @property
    def operations(self) -> float:
        """Values per second, written and read, while a call was under way."""
        calls = len(self.puts) + len(self.gets)
        return self.batch * calls / (sum(self.puts) + sum(self.gets))

    @property
    def writes(self) -> float:
        return self.batch * len(self.puts) / sum(self.puts)

    @property
    def mixed_reads(self) -> float:
        return self.batch * len(self.gets) / sum(self.gets)

    @property
    def reads(self) -> float:
        return self.batch * len(self.later_gets) / sum(self.later_gets)


def key_of(number: int) -> str:
    """The key of a number."""
    return f"state/word-{number:07}"


def load(url: str, writer: str, keys: int) -> float:
    """Give every key a value; how many seconds it took.

    ``files://`` would need an hour for a million keys: here its files are synced all at once.
    """
    values = Values(random.Random(1))
    at_once = url.startswith("files:")
    began = time.perf_counter()
    store = open_store(url, writer)
    with patch.object(os, "fsync", _later if at_once else os.fsync):
        for first in range(0, keys, _LOADED_AT_ONCE):
            store.put(values.of(range(first, min(keys, first + _LOADED_AT_ONCE))))
    store.close()
    os.sync()
    return time.perf_counter() - began


def _later(file: int) -> None:
    """Leave the syncing of a file to whoever syncs all of them."""


def drive(share: Share, ready: Callable[[], object]) -> Timed:
    """Open the store, warm up, and take the times; ``ready`` returns when all writers are."""
    chance = random.Random(share.seed)
    values = Values(chance)
    owned = range(share.first, share.keys, share.step)
    batch = min(share.batch, len(owned))
    timed = Timed(batch)
    store = open_store(share.url, share.writer)
    try:
        for _ in range(_WARM_UP):
            _get(store, chance.sample(owned, batch))
        _put(store, values, chance.sample(owned, batch))
        ready()
        for number in _calls(share.seconds, share.calls):
            chosen = chance.sample(owned, batch)
            if (number + 1) % _CALLS_PER_READ:
                timed.puts.append(_put(store, values, chosen))
            else:
                timed.gets.append(_get(store, chosen))
        ready()
        for _ in _calls(share.seconds * _READING, share.calls):
            timed.later_gets.append(_get(store, chance.sample(owned, batch)))
    finally:
        store.close()
    return timed


def _calls(seconds: float, at_least: int) -> Iterator[int]:
    """Count calls for so many seconds."""
    ends = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < ends or number < at_least:
        yield number
        number += 1


def _put(store: Store, values: Values, numbers: Sequence[int]) -> float:
    items = values.of(numbers)
    began = time.perf_counter()
    store.put(items)
    return time.perf_counter() - began


def _get(store: Store, numbers: Sequence[int]) -> float:
    keys = [key_of(number) for number in numbers]
    began = time.perf_counter()
    found = store.get(keys)
    took = time.perf_counter() - began
    for number, key in zip(numbers, keys, strict=True):
        value = found[key]
        if len(value) != VALUE_BYTES or int.from_bytes(value[:_NUMBER_BYTES], "big") != number:
            raise SystemExit(f"{key} has the value of another key, or a piece of one")
    return took


class Values:
    """Values that say whose they are, and cannot be compressed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._bodies = [chance.randbytes(VALUE_BYTES - _NUMBER_BYTES) for _ in range(_BODIES)]

    def of(self, numbers: Sequence[int]) -> dict[str, bytes]:
        bodies = self._chance.choices(self._bodies, k=len(numbers))
        return {
            key_of(number): number.to_bytes(_NUMBER_BYTES, "big") + body
            for number, body in zip(numbers, bodies, strict=True)
        }


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    if len(seconds) == 1:
        return seconds[0] * 1000, seconds[0] * 1000
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000
