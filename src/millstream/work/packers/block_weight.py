"""The size of keyed values in a block, estimated before they are packed.

A block must stay far below 2 GiB, the limit of Arrow's offsets and of Spark's rows, and the values
that a map task groups must fit into its memory. Columns are measured exactly, and so are strings
and bytes; other Python values by samples, until they turn out to be large. The estimate depends on
the values alone: a task that is retried cuts its blocks at the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys
from millstream.state.values import value_text
from millstream.work.failures import RecordError, record_error
from millstream.work.keyed_batches import KeyedBatch, Pairs, Timed

FLUSH_BYTES = 256 * 2**20
LARGEST_BYTES = 2**30

V = TypeVar("V", Pairs | KeyedBatch, Timed)

_TEXTS = (str, bytes)
_FIXED = frozenset({int, float, bool, type(None)})
_SMALL = 256  # rows of a batch that is one of many
_FEW = 64  # values of one batch, or items of one container, that are weighed as samples
_ONE_IN = 16
_HEAVY = 256  # on average: measuring all of them then costs little compared with packing them
_DEPTH = 4
_value = itemgetter(1)


class Weigher:
    """Measures the values for one packer, and cuts those that are too large for one block."""

    def __init__(
        self, job: JobVertex, *, limit: int = FLUSH_BYTES, largest: int = LARGEST_BYTES
    ) -> None:
        self._job = job
        self._limit = limit
        self._largest = largest
        self._bytes = 0
        self._rows = 0
        self._batches = 0

    def parts(self, values: V) -> Iterator[tuple[V, int]]:
        """The values with their size, in parts that fit into a block."""
        batch = values.values if isinstance(values, Timed) else values
        rows = len(batch)
        if not rows:
            return
        weight = self._weight(batch)
        self._bytes += weight
        self._rows += rows
        if weight <= self._limit:
            yield values, weight
        else:
            yield from self._cut(values, 0, rows)

    def _weight(self, batch: Pairs | KeyedBatch) -> int:
        if isinstance(batch, KeyedBatch):
            return batch.nbytes
        items = batch.items
        if self._bytes >= _HEAVY * self._rows > 0:
            return exact_weight(items)
        self._batches += 1
        if self._rows and len(items) < _SMALL and self._batches % 8:
            if type(items[0][1]) in _FIXED:  # as those before
                return self._bytes * len(items) // self._rows
        return quick_weight(items)

    def _cut(self, values: V, start: int, stop: int) -> Iterator[tuple[V, int]]:
        """Halve until a part is light enough, or one row."""
        part = values.part(start, stop)
        batch = part.values if isinstance(part, Timed) else part
        weight = batch.nbytes if isinstance(batch, KeyedBatch) else exact_weight(batch.items)
        if weight <= self._limit or stop - start == 1:
            if weight > self._largest:
                raise self._too_large(batch, weight)
            yield part, weight
            return
        middle = (start + stop) // 2
        yield from self._cut(values, start, middle)
        yield from self._cut(values, middle, stop)

    def _too_large(self, batch: Pairs | KeyedBatch, weight: int) -> RecordError:
        key = decode_keys(batch.keys)[0] if isinstance(batch, KeyedBatch) else batch.items[0][0]
        return too_large(self._job, f"a value of {weight:,} bytes for the key {value_text(key)}")


def too_large(job: JobVertex, what: str) -> RecordError:
    """The error for values that no block can hold."""
    return record_error(
        f"{'input' if job.map is None else 'map'} of job {job.name!r}",
        job.map if callable(job.map) else None,
        f"gave {what}, more than the {LARGEST_BYTES:,} bytes that can travel as one",
        "give it in several parts, or keep it elsewhere and give its name",
    )


def quick_weight(items: Sequence[tuple[Any, ...]]) -> int:
    """The size of pairs: exact for strings as values, by samples for the rest."""
    rows = len(items)
    samples = items[:: max(_ONE_IN, rows // _FEW)]
    keys = sum([weight_of(item[0]) for item in samples])
    if isinstance(items[0][1], _TEXTS):
        try:
            return keys * rows // len(samples) + sum(map(len, map(_value, items)))
        except TypeError:  # a text, and then something else
            return exact_weight(items)
    return (keys + sum([weight_of(item[1]) for item in samples])) * rows // len(samples)


def exact_weight(items: Sequence[tuple[Any, ...]]) -> int:
    """The size of pairs, each of them measured."""
    return sum([weight_of(item[0]) + weight_of(item[1]) for item in items])


def weight_of(value: Any, depth: int = _DEPTH) -> int:
    """The approximate serialised size of a Python value."""
    if type(value) in _FIXED:
        return 8
    if isinstance(value, str):
        if len(value) < _HEAVY or value.isascii():
            return len(value)
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, dict):
        return 8 + _sampled(value.items(), len(value), depth)
    if isinstance(value, tuple | list | set | frozenset):
        return 8 + _sampled(value, len(value), depth)
    size = getattr(value, "nbytes", 8)  # of numpy's and Arrow's arrays, for one
    if isinstance(size, int) and size > 8:
        return size
    inside = getattr(value, "__dict__", None)
    return 8 + (_sampled(inside.values(), len(inside), depth) if isinstance(inside, dict) else 0)


def _sampled(items: Any, count: int, depth: int) -> int:
    if not count or not depth:
        return 8 * count
    few = min(count, _FEW)
    return sum([weight_of(item, depth - 1) for item in islice(items, few)]) * count // few
