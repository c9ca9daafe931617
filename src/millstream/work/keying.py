"""From chunks to keyed values: the map of a job and the choice of its key.

Gives either pairs of Python objects or Arrow columns, whichever is at hand; the packers in
``packing.py`` take both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.functions import ArrowFunction
from millstream.flow.workflow import JobVertex
from millstream.ring.keys import KeyTypeError, canonical_column, encode_keys
from millstream.state.blocks import KEY
from millstream.state.records import encode_records, plain_columns, row_type
from millstream.state.values import decode_column, shown
from millstream.work.chunk import Chunk
from millstream.work.failures import calling, record_error
from millstream.work.steps import call_arrow

_TIME = pa.timestamp("us", "UTC")
_UNMISTAKABLE = (str, bytes)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Keyed values as Python pairs, or triples with an event time."""

    items: Sequence[tuple[Any, ...]]
    timed: bool


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """Keyed values as columns: canonical keys, value columns, event times."""

    keys: pa.Array
    values: dict[str, pa.Array]
    times: pa.Array | None


def keyed(job: JobVertex, chunk: Chunk) -> Iterator[Pairs | KeyedBatch]:
    """Run the map of a job and key what it gives."""
    role = f"map of job {job.name!r}"
    if isinstance(job.map, ArrowFunction):
        for batch in call_arrow(role, job.map.function, chunk.plain()):
            yield _from_batch(job, batch)
        return
    if job.map is None and job.key is None and chunk.is_batch and KEY in chunk.batch().schema.names:
        yield _from_batch(job, plain_columns(chunk.batch()))
        return
    if job.map is None and isinstance(job.key, str | tuple):
        yield _from_batch(job, chunk.plain())
        return
    records = chunk.records()
    if job.map is not None:
        with calling(role, job.map):
            records = list(chain.from_iterable(map(job.map, records)))
    if callable(job.key):
        with calling(f"key of job {job.name!r}", job.key):
            yield Pairs(list(zip(map(job.key, records), records, strict=True)), False)
        return
    if records:
        yield _as_pairs(job, records)


def _as_pairs(job: JobVertex, items: Sequence[Any]) -> Pairs:
    if set(map(type, items)) == {tuple}:
        widths = set(map(len, items))
        if widths == {2} or widths == {3}:
            pairs = Pairs(items, widths == {3})
            _check_key_kinds(job, pairs)
            return pairs
    wrong = next(
        item for item in items if type(item) is not tuple or len(item) not in (2, 3)
    ) if not _only_pairs_and_triples(items) else None
    if wrong is None:
        raise record_error(
            f"map of job {job.name!r}",
            job.map,
            "yielded both (key, value) and (key, value, timestamp)",
            "yield one or the other",
        )
    raise record_error(
        f"map of job {job.name!r}" if job.map is not None else f"input of job {job.name!r}",
        job.map,
        f"yielded {shown(wrong)}, which is not a (key, value) pair",
        "yield tuples (key, value) or (key, value, timestamp)",
    )


def _only_pairs_and_triples(items: Sequence[Any]) -> bool:
    return all(type(item) is tuple and len(item) in (2, 3) for item in items)


def _check_key_kinds(job: JobVertex, pairs: Pairs) -> None:
    # A dictionary takes 1, True and 1.0 for one key. Look at every key's type before grouping,
    # unless the first is a string, which equals nothing but strings.
    first = pairs.items[0][0]
    if isinstance(first, _UNMISTAKABLE):
        return
    keys = map(itemgetter(0), pairs.items)
    if isinstance(first, tuple):
        samples = list({_kinds(key): key for key in keys}.values())
    else:
        samples = list({type(key): key for key in keys}.values())
    encode_job_keys(job, samples)


def _kinds(key: Any) -> Any:
    return tuple(map(_kinds, key)) if isinstance(key, tuple) else type(key)


def encode_job_keys(job: JobVertex, keys: Sequence[Any]) -> pa.Array:
    """Encode Python keys; a misfit is told with the job and the user's map."""
    try:
        return encode_keys(keys, job.key_type)
    except KeyTypeError as misfit:
        function = job.map.function if isinstance(job.map, ArrowFunction) else job.map
        raise record_error(
            f"map of job {job.name!r}",
            job.key if callable(job.key) else function,
            f"gave the key {misfit}",
            "give keys of one type, or declare key_type=",
        ) from None


def _from_batch(job: JobVertex, batch: pa.RecordBatch) -> KeyedBatch:
    names = (job.key,) if isinstance(job.key, str) else job.key
    names = (KEY,) if names is None or callable(names) else names
    missing = [name for name in (*names, *([job.time] if job.time else [])) if name not in batch.schema.names]
    function = job.map.function if isinstance(job.map, ArrowFunction) else None
    if missing:
        raise record_error(
            f"input of job {job.name!r}" if function is None else f"map of job {job.name!r}",
            function,
            f"has no column {missing[0]!r} (it has {', '.join(batch.schema.names) or 'none'})",
            "give the batch that column, or name another with key= or time=",
        )
    try:
        keys = [canonical_column(batch.column(name)) for name in names]
    except KeyTypeError as misfit:
        raise record_error(
            f"map of job {job.name!r}", function, f"gave the key {misfit}", "cast the key column"
        ) from None
    key = keys[0]
    if len(keys) > 1:
        key = pa.StructArray.from_arrays(keys, [f"f{i}" for i in range(len(keys))])
    if job.key_type is not None and key.type != job.key_type and not pa.types.is_null(key.type):
        raise record_error(
            f"map of job {job.name!r}",
            function,
            f"gave keys of type {key.type}, but the job's keys are {job.key_type}",
            "cast the key column, or declare key_type=",
        )
    kept = set(names) if job.map is not None or job.key is None else set()
    values = {
        name: batch.column(name)
        for name in batch.schema.names
        if name not in kept and name != job.time
    }
    times = batch.column(job.time).cast(_TIME) if job.time else None
    return KeyedBatch(key, values, times)


def pair_columns(job: JobVertex, pairs: Pairs) -> KeyedBatch:
    """Spell pairs out as columns, for reducers that work on Arrow."""
    columns = list(zip(*pairs.items, strict=True))
    encoded = encode_records(columns[1])
    try:
        batch = plain_columns(encoded)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        raise record_error(
            f"map of job {job.name!r}",
            job.map,
            f"gave values that Arrow cannot carry ({problem})",
            "yield plain values, or use a reduce function",
        ) from None
    values = dict(zip(batch.schema.names, batch.columns, strict=True))
    times = encode_times(columns[2]) if pairs.timed else None
    return KeyedBatch(encode_job_keys(job, columns[0]), values, times)


def column_values(batch: KeyedBatch) -> list[Any]:
    """The values of a keyed batch as Python objects: bare, or rows of several columns."""
    if not batch.values:
        return [None] * len(batch.keys)
    columns = [
        decode_column(pa.field(name, column.type), column) for name, column in batch.values.items()
    ]
    if len(columns) == 1:
        return columns[0]
    return list(map(row_type(tuple(batch.values))._make, zip(*columns, strict=True)))


def encode_times(times: Sequence[Any]) -> pa.Array:
    """Event times as UTC microseconds; a naive datetime is read as UTC, a number as seconds."""
    kinds = set(map(type, times)) - {type(None)}
    if kinds <= {int, float}:
        seconds = np.array([np.nan if time is None else time for time in times], dtype=float)
        micros = np.round(seconds * 1e6)
        return pa.array(np.nan_to_num(micros).astype(np.int64), mask=np.isnan(micros)).cast(_TIME)
    if kinds <= {datetime}:
        return pa.array(times, type=_TIME)
    raise TypeError(f"{kinds} are not timestamps")


def group(keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Number the distinct keys: each row's group, and one row of every group."""
    if not pa.types.is_struct(keys.type):
        encoded = keys.dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    codes = np.asarray(keys.is_valid().to_numpy(zero_copy_only=False), dtype=np.int64)
    first = np.zeros(0, dtype=np.int64)
    for field in keys.flatten():
        part, distinct = group(field)
        _, first, codes = np.unique(
            codes * (len(distinct) + 1) + part, return_index=True, return_inverse=True
        )
    return codes.astype(np.int64, copy=False), keys.take(pa.array(first))
