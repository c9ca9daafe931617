"""The values of each key of a unit, gathered from its blocks: some slots at a time.

Blocks are ordered by slot, so that a share of the slots is a slice of each. A unit of a million
keys is never one dictionary: resizing or freeing that would stop all threads for a tenth of a
second, and need all its memory at once.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from operator import mul
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import BINARY, INT64, STRING
from millstream.ring.keys import decode_keys
from millstream.ring.strides import strides
from millstream.state.blocks import KEY, NEWEST, SLOT
from millstream.state.pickling import loads
from millstream.times import BEGINNING
from millstream.work.keyed_values import one_key_type
from millstream.work.packers.value_lists import VALUES, decode_lists, repeated_value

# The number of rows of a share, unless a single slot has more; the more blocks, the more rows,
# because each slice of a block has a cost.
_LEAST, _MOST = 16_384, 65_536
_ROWS_OF_BLOCK = 1_024

Groups = Mapping[Any, list[Any]]


class Repeats(Groups):
    """Keys that have one value, each so many times.

    A list is made when it is taken. All of them would take memory anew, and be out of the
    processor's cache when the reduce function reads them.
    """

    def __init__(self, value: Any, counts: dict[Any, int]) -> None:
        self._one = [value]
        self._counts = counts

    def __getitem__(self, key: Any) -> list[Any]:
        return self._one * self._counts[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> ItemsView[Any, list[Any]]:
        """The keys with their lists, each made when its turn comes."""
        return _Lists(self, self._one, self._counts)


class _Lists(ItemsView[Any, list[Any]]):
    """The same as of any mapping, without a call of Python for each key."""

    def __init__(self, groups: Repeats, one: list[Any], counts: dict[Any, int]) -> None:
        super().__init__(groups)
        self._one, self._counts = one, counts

    def __iter__(self) -> Iterator[tuple[Any, list[Any]]]:
        return zip(self._counts, map(mul, repeat(self._one), self._counts.values()), strict=True)


def shares(job: JobVertex, blocks: Sequence[pa.RecordBatch]) -> Iterator[Sequence[pa.RecordBatch]]:
    """The blocks of a unit in shares; keys of different types are rejected."""
    # To a dictionary 1, True and 1.0 are one key.
    one_key_type(job, [block.column(KEY) for block in blocks])
    yield from _shares(blocks)


def newest_times(blocks: Sequence[pa.RecordBatch]) -> dict[Any, int]:
    """The newest event time of each key of a share that has any."""
    newest: dict[Any, int] = {}
    for block in chain.from_iterable(map(_strides, blocks)):
        if NEWEST not in block.schema.names:
            continue
        times = block.column(NEWEST).to_numpy().tolist()
        for key, time in zip(decode_keys(block.column(KEY)), times, strict=True):
            if time > newest.get(key, BEGINNING):
                newest[key] = time
    return newest


def _shares(blocks: Sequence[pa.RecordBatch]) -> Iterator[Sequence[pa.RecordBatch]]:
    """Blocks cut between slots, into shares of not too many rows."""
    most = min(max(_LEAST, _ROWS_OF_BLOCK * len(blocks)), _MOST)
    if sum(block.num_rows for block in blocks) <= most:
        yield blocks
        return
    slots = [block.column(SLOT).to_numpy() for block in blocks]
    counts = np.bincount(np.concatenate(slots))
    bounds = np.flatnonzero(np.diff(np.cumsum(counts) // most, prepend=0)).tolist()
    for start, stop in pairwise([0, *bounds, len(counts)]):
        cuts = [np.searchsorted(of_block, (start, stop)).tolist() for of_block in slots]
        share = [
            block.slice(first, last - first)
            for block, (first, last) in zip(blocks, cuts, strict=True)
            if last > first
        ]
        if share:
            yield share


def _strides(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in strides(block.num_rows):
        yield block.slice(at.start, at.stop - at.start)


def _gather_repeated(blocks: Sequence[pa.RecordBatch]) -> tuple[Groups, list[int]] | None:
    """The same for blocks in which all values are equal, if these have plain keys of one type."""
    keys = [block.column(KEY) for block in blocks]
    if keys[0].type not in (STRING, BINARY, INT64) or len({column.type for column in keys}) > 1:
        return None
    repeated = {repeated_value(block) for block in blocks}
    (value,) = repeated if len(repeated) == 1 else (None,)
    if value is None:
        return None
    encoded = pa.concat_arrays(keys).dictionary_encode(null_encoding="encode")
    of_rows = encoded.indices.to_numpy()
    counts = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(counts, of_rows, np.concatenate([b.column(VALUES).to_numpy() for b in blocks]))
    slots = np.zeros(len(counts), np.int32)
    slots[of_rows] = np.concatenate([block.column(SLOT).to_numpy() for block in blocks])
    keys_and_counts = zip(decode_keys(encoded.dictionary), counts.tolist(), strict=True)
    return Repeats(loads(value), dict(keys_and_counts)), slots.tolist()


def gather(blocks: Sequence[pa.RecordBatch]) -> tuple[Groups, list[int]]:
    """The values of each key of a share, and the keys' slots."""
    if len(blocks) > 1 and (counted := _gather_repeated(blocks)) is not None:
        return counted
    groups: dict[Any, list[Any]] = {}
    slots: list[int] = []
    for block in chain.from_iterable(map(_strides, blocks)):
        keys = decode_keys(block.column(KEY))
        of_block = block.column(SLOT).to_numpy().tolist()
        if groups.keys().isdisjoint(keys):
            fresh = dict(zip(keys, decode_lists(block), strict=True))
            if len(fresh) == len(
                keys
            ):  # no key occurs twice, whose values would have to be concatenated
                groups.update(fresh)
                slots += of_block
                continue
        for key, slot, values in zip(keys, of_block, decode_lists(block), strict=True):
            known = groups.get(key)
            if known is None:
                groups[key] = values
                slots.append(slot)
            else:
                known.extend(values)
    return groups, slots
