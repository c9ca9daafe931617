"""Keyed values as Python objects, as packers collect them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys
from millstream.state.aggregates.grouping import Ints
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, column_values, encode_job_keys, group


def as_items(values: Pairs | KeyedBatch) -> tuple[Sequence[Any], list[Any] | None]:
    """Pairs of key and value as Python objects, and their times if they have any."""
    if isinstance(values, KeyedBatch):
        times = None if values.times is None else values.times.to_pylist()
        return list(zip(decode_keys(values.keys), column_values(values), strict=True)), times
    if values.timed:
        return [(k, v) for k, v, _ in values.items], [time for _, _, time in values.items]
    return values.items, None


class CollectedValues:
    """Values of a windowed job as Python objects, with numbers for their keys."""

    def __init__(self, job: JobVertex) -> None:
        self._job = job
        self._uniform = Uniform(job)
        self._ids: defaultdict[Any, int] = _numbering()
        self._numbers: list[Ints] = []
        self._times: list[Ints] = []
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, values: Pairs | KeyedBatch, times: Ints) -> None:
        """Take values with their event times."""
        if isinstance(values, KeyedBatch):
            groups, distinct = group(values.keys)
            self._numbers.append(self._number(decode_keys(distinct))[groups])
            self._values.extend(column_values(values))
        else:
            self._numbers.append(self._number(list(map(itemgetter(0), values.items))))
            self._values.extend(map(itemgetter(1), values.items))
        self._times.append(times)

    def _number(self, keys: Sequence[Any]) -> Ints:
        keys = self._uniform.keys(keys)
        try:
            return np.fromiter(map(self._ids.__getitem__, keys), np.int64, len(keys))
        except TypeError:  # report the key that cannot be hashed
            encode_job_keys(self._job, keys)
            raise

    def take(self) -> tuple[Ints, Ints, list[Any]]:
        """The numbers of the keys, the times and the values that were added since the last call."""
        found = np.concatenate(self._numbers), np.concatenate(self._times), self._values
        self._numbers, self._times, self._values = [], [], []
        return found

    def key(self, number: int) -> Any:
        """The key with a number."""
        return list(self._ids)[number]

    def take_keys(self) -> list[Any]:
        """The keys in the order of their numbers; numbering starts again from 0."""
        keys, self._ids = list(self._ids), _numbering()
        return keys


def _numbering() -> defaultdict[Any, int]:
    ids: defaultdict[Any, int] = defaultdict()
    ids.default_factory = ids.__len__
    return ids
