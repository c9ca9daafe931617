"""From chunks to keyed values: the map of a job and the choice of its key.

The result is pairs of Python objects or Arrow columns, whichever needs no conversion; packers take
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from itertools import chain, zip_longest
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.flow.functions import ArrowFunction
from millstream.flow.reducers import AggregateReducer, CombiningReducer, StatefulReducer
from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import INSTANT, describe, key_text, struct_of
from millstream.ring.keys import (
    NAN,
    KeyTypeError,
    canonical_column,
    canonical_type,
    decode_keys,
    encode_keys,
    one_nan,
)
from millstream.ring.scalars import conversion, plain_value
from millstream.state.blocks import KEY
from millstream.state.records import encode_records, plain_columns, rows_of, shape_of
from millstream.state.values import (
    UNFIT,
    ValueTypeError,
    decode_column,
    is_pickled,
    unify_nulls,
    value_text,
)
from millstream.times import FIRST, LAST
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, calling_each, record_error
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.steps import call_arrow

_CACHED_PAIRS = 128
_NULL = pa.null()
_MICROSECONDS = {"s": 1_000_000, "ms": 1000}
# A string equals only strings; keys of other types among them fail in the encoding.
_UNMISTAKABLE = (str, bytes)
# Types that a dictionary groups as the encoding does, if all keys have one of them.
_PLAIN_KINDS = frozenset({str, bytes, int, float, bool, date, datetime, tuple, type(None)})


def mapped(job: JobVertex, chunk: Chunk) -> Sequence[Any]:
    """The results of the map of a job: batches of an Arrow function, or records."""
    if isinstance(job.map, ArrowFunction):
        return list(call_arrow(_role(job), job.map.function, chunk.plain()))
    return _map_records(job, chunk.records())


def keyed(
    job: JobVertex, chunk: Chunk, given: Sequence[Any] | None = None
) -> Iterator[Pairs | KeyedBatch]:
    """Run the map of a job and key its results, or those that are ``given``."""
    if isinstance(job.map, ArrowFunction):
        batches = call_arrow(_role(job), job.map.function, chunk.plain())
        for batch in batches if given is None else given:
            yield from_batch(job, batch)
        return
    if job.map is None and job.key is None and _is_keyed(chunk):
        yield from_batch(job, chunk.plain())
        return
    if job.map is None and isinstance(job.key, str | tuple):
        yield from_batch(job, chunk.plain())
        return
    records = chunk.records() if given is None else given
    # Pairs that go into dictionaries are yielded in small batches, which stay in the processor's
    # cache until they are grouped: that makes this loop a third faster. The times of windowed
    # values are columns, where a large batch costs no more calls than a small one.
    in_python = isinstance(job.reducer, StatefulReducer | CombiningReducer) and not job.windowing
    size = _CACHED_PAIRS if in_python else max(1, len(records))
    for start in range(0, len(records), size):
        part = records[start : start + size]
        yield from _keyed_records(job, _map_records(job, part) if given is None else part)


def _role(job: JobVertex) -> str:
    return f"map of job {job.name!r}"


def _map_records(job: JobVertex, records: Sequence[Any]) -> Sequence[Any]:
    # Comprehensions: list(map(...)) would take a StopIteration that escapes from a user's function
    # for the end of the records.
    if job.map is None:
        return records
    assert not isinstance(job.map, ArrowFunction)
    with calling_each(_role(job), job.map, records) as turn:
        parts = [job.map(record) for record in turn]
    with calling_each(_role(job), job.map, records, parts) as turn:
        return list(chain.from_iterable(turn))


def _keyed_records(job: JobVertex, records: Sequence[Any]) -> Iterator[Pairs]:
    if not records:
        return
    if callable(job.key):
        with calling_each(f"key of job {job.name!r}", job.key, records) as turn:
            pairs = [(job.key(record), record) for record in turn]
        yield Pairs(pairs, False)
        return
    yield _as_pairs(job, records)


def _is_keyed(chunk: Chunk) -> bool:
    """Whether a chunk has a key column.

    Pairs with pickled values do not: converted to Arrow, the values would not come back as they
    were.
    """
    if not chunk.is_batch:
        return False
    schema = chunk.batch().schema
    exact = shape_of(schema) not in ("pair", "tuple") or not any(map(is_pickled, schema))
    return KEY in schema.names and exact


def _as_pairs(job: JobVertex, items: Sequence[Any]) -> Pairs:
    if set(map(type, items)) == {tuple}:
        try:
            columns = tuple(zip(*items, strict=True))
        except ValueError:  # they differ in length
            columns = ()
        if len(columns) in (2, 3):
            return Pairs(items, len(columns) == 3, columns)
        if set(map(len, items)) == {2, 3}:
            raise _half_timed(job)
    wrong = next(item for item in items if type(item) is not tuple or len(item) not in (2, 3))
    raise record_error(
        f"{'input' if job.map is None else 'map'} of job {job.name!r}",
        job.map,
        f"yielded {value_text(wrong)}, which is not a (key, value) pair",
        "yield tuples (key, value) or (key, value, timestamp)",
    )


def _half_timed(job: JobVertex) -> RecordError:
    return record_error(
        f"map of job {job.name!r}",
        job.map,
        "yielded both (key, value) and (key, value, timestamp)",
        "yield one or the other",
    )


_Kind = tuple[tuple[int, ...], type]


class Uniform:
    """Checks that all keyed values of one packer have keys of one type, and all or none have times.

    To a dictionary 1, True and 1.0 are one key, so the types of all keys are checked before
    grouping.
    """

    def __init__(self, job: JobVertex) -> None:
        self._job = job
        self._kinds: set[_Kind] = set()
        self._type = _NULL
        self._timed: bool | None = None

    def checked(self, items: Sequence[tuple[Any, Any]], timed: bool) -> Sequence[tuple[Any, Any]]:
        """Raise if the keys of these items, or their having times, differ from the others.

        Returns the items with keys that a dictionary can group: plain Python values, one NaN.
        """
        if self._timed is not None and timed != self._timed:
            raise _half_timed(self._job)
        self._timed = timed
        if not items or type(items[0][0]) in _UNMISTAKABLE:
            return items
        given = list(map(itemgetter(0), items))
        keys = self.keys(given)
        if keys is given:
            return items
        return list(zip(keys, map(itemgetter(1), items), strict=True))

    def keys(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The same for keys alone; the same object if a dictionary can group them."""
        if not keys or type(keys[0]) in _UNMISTAKABLE:
            return keys
        kinds = _kinds(keys)
        types = {kind for _, kind in kinds}
        plain = types <= _PLAIN_KINDS
        if not plain or not kinds <= self._kinds:
            encoded = encode_job_keys(self._job, keys)
            self._type = one_key_type(self._job, [encoded], self._type)
            self._kinds |= kinds
            if not plain:
                return decode_keys(encoded)
        if float not in types:
            return keys
        if tuple in types:
            return list(map(one_nan, keys))
        return [NAN if key != key else key for key in keys]


def _kinds(keys: Sequence[Any], at: tuple[int, ...] = ()) -> set[_Kind]:
    """The types of keys, and of the items of tuples, each with its position in the key."""
    kinds = set(map(type, keys))
    found: set[_Kind] = {(at, kind) for kind in kinds}
    if tuple in kinds:
        tuples = keys if len(kinds) == 1 else [key for key in keys if type(key) is tuple]
        for place, items in enumerate(zip_longest(*tuples)):
            found |= _kinds(items, (*at, place))
    return found


def one_key_type(
    job: JobVertex, columns: Sequence[pa.Array], known: pa.DataType = _NULL
) -> pa.DataType:
    """The common type of a job's keys; null, also inside tuples, fits any type."""
    for keys in columns:
        kind = known if keys.type == known else unify_nulls((known, keys.type))
        if kind is None:
            key = next(key for key in decode_keys(keys) if key is not None)
            raise mixed_keys(job, key_text(key), describe(keys.type), describe(known))
        known = kind
    return known


def mixed_keys(job: JobVertex, key: str, found: str, known: str) -> RecordError:
    """The error for a key of another type than others of its job."""
    function = job.map.function if isinstance(job.map, ArrowFunction) else job.map
    return record_error(
        f"map of job {job.name!r}",
        job.key if callable(job.key) else function,
        f"gave the key {key}, which is {found}, but the job's keys are {known}",
        "give keys of one type (str, bytes, int, float, bool, date, datetime, or tuples of these): "
        "convert them where they are made",
    )


def encode_job_keys(job: JobVertex, keys: Sequence[Any]) -> pa.Array:
    """Encode Python keys; an error names the job and the user's map."""
    try:
        return encode_keys(keys, job.key_type)
    except KeyTypeError as misfit:
        raise mixed_keys(job, misfit.key, misfit.found, misfit.expected) from None


def from_batch(job: JobVertex, batch: pa.RecordBatch, *, timed: bool = True) -> KeyedBatch:
    """Key the rows of a batch by its key columns; unless ``timed``, without event times."""
    time = job.time if timed else None
    names = (job.key,) if isinstance(job.key, str) else job.key
    names = (KEY,) if names is None or callable(names) else names
    missing = [
        name for name in (*names, *([time] if time else [])) if name not in batch.schema.names
    ]
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
        kind = struct_of([column.type for column in keys])
        key = pa.StructArray.from_arrays(keys, fields=list(kind))
    if job.key_type is not None:
        wanted = canonical_type(job.key_type)
        if unify_nulls((key.type, wanted)) != wanted:
            raise record_error(
                f"map of job {job.name!r}",
                function,
                f"gave keys of type {key.type}, but the job's keys are {wanted}",
                "cast the key column, or declare key_type=",
            )
    kept = set(names) if job.map is not None or job.key is None else set()
    if time is not None and not job.has_timers and not _aggregates(job, time):
        kept.add(time)
    values = {name: batch.column(name) for name in batch.schema.names if name not in kept}
    times = time_column(job, batch.column(time)) if time else None
    return KeyedBatch(key, values, times)


def _aggregates(job: JobVertex, column: str) -> bool:
    """Whether a column that has another purpose is also aggregated, by its name."""
    reducer = job.reducer
    return isinstance(reducer, AggregateReducer) and any(
        aggregate.column == column for _, aggregate in reducer.aggregates.items
    )


def pair_columns(job: JobVertex, pairs: Pairs, *, with_values: bool = True) -> KeyedBatch:
    """Convert pairs to columns, for reducers that work on Arrow."""
    columns = pairs.columns
    keys = encode_job_keys(job, columns[0])
    times = encode_times(job, columns[2]) if pairs.timed else None
    return KeyedBatch(keys, _value_columns(job, columns[1]) if with_values else {}, times)


def _value_columns(job: JobVertex, values: Sequence[Any]) -> dict[str, pa.Array]:
    try:
        encoded = encode_records(values)
        batch = plain_columns(encoded)
    except ValueTypeError as misfit:
        raise record_error(
            f"map of job {job.name!r}",
            job.map,
            f"gave values that Arrow cannot carry: {misfit}",
            "yield plain values, or use a reduce function",
        ) from None
    # A value that is a pair has no key: its items are named like those of any other tuple.
    names = ["_1", "_2"] if shape_of(encoded.schema) == "pair" else batch.schema.names
    return dict(zip(names, batch.columns, strict=True))


def column_values(batch: KeyedBatch) -> list[Any]:
    """The values of a keyed batch as Python objects: bare, or rows of several columns."""
    if not batch.values:
        return [None] * len(batch.keys)
    columns = [
        decode_column(pa.field(name, column.type), column) for name, column in batch.values.items()
    ]
    if len(columns) == 1:
        return columns[0]
    return rows_of(list(batch.values), columns)


def encode_times(job: JobVertex, times: Sequence[Any]) -> pa.Array:
    """Event times as UTC microseconds; a naive datetime is read as UTC, a number as seconds.

    Times beyond the range of datetimes are clipped to it.
    """
    try:
        return _instants(times)
    except UNFIT:
        wrong = next((time for time in times if not _is_time(time)), None)
        what = "numbers beside datetimes" if wrong is None else value_text(wrong)
        raise _bad_time(job, what) from None


def _instants(times: Sequence[Any]) -> pa.Array:
    kinds = set(map(type, times)) - {type(None)}
    if any(map(conversion, kinds)):
        times = list(map(plain_value, times))
        kinds = set(map(type, times)) - {type(None)}
    if kinds <= {int, float}:
        return _from_seconds(np.array(times, dtype=float))
    if kinds <= {datetime}:
        return _in_calendar(pa.array(times, type=INSTANT))
    raise TypeError("neither numbers nor datetimes")


def _is_time(time: Any) -> bool:
    try:
        _instants([time])
    except UNFIT:
        return False
    return True


def time_column(job: JobVertex, column: pa.Array) -> pa.Array:
    """A column of event times as UTC microseconds."""
    try:
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            # Not safe: numbers that a float rounds to seconds are far beyond any datetime.
            seconds = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return _from_seconds(seconds)
        # Not safe: fractions of a microsecond are cut off.
        return _in_calendar(_countable(column).cast(INSTANT, safe=False))
    except UNFIT:
        raise _bad_time(job, f"a column {job.time!r} of type {column.type}") from None


def _from_seconds(seconds: npt.NDArray[np.float64]) -> pa.Array:
    missing = np.isnan(seconds)
    known = np.clip(np.where(missing, 0.0, seconds), FIRST / 1e6, LAST / 1e6)
    micros = np.round(known * 1e6).astype(np.int64)
    return _in_calendar(pa.array(micros, mask=missing).cast(INSTANT))


def _countable(column: pa.Array) -> pa.Array:
    """Times in coarse units, clipped so that their microseconds fit 64 bits."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    scale = _MICROSECONDS.get(column.type.unit) if pa.types.is_timestamp(column.type) else None
    if scale is None:
        return column
    counted = _clipped(column.view(pa.int64()), FIRST // scale - 1, LAST // scale + 1)
    return counted.view(column.type)


def _in_calendar(times: pa.Array) -> pa.Array:
    return _clipped(times.view(pa.int64()), FIRST, LAST).view(INSTANT)


def _clipped(numbers: pa.Array, low: int, high: int) -> pa.Array:
    raised = pc.max_element_wise(numbers, low, skip_nulls=False)
    return pc.min_element_wise(raised, high, skip_nulls=False)


def _bad_time(job: JobVertex, what: str) -> RecordError:
    return record_error(
        f"map of job {job.name!r}",
        job.map,
        f"gave {what} for a timestamp",
        "give event times as datetimes, or as seconds since 1970",
    )


def group(keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Number the distinct keys: the group of each row, and the key of each group."""
    if not pa.types.is_struct(keys.type):
        encoded = keys.dictionary_encode(null_encoding="encode")
        return encoded.indices.cast(pa.int64()).to_numpy(), encoded.dictionary
    valid = keys.is_valid().to_numpy(zero_copy_only=False)
    _, first, codes = np.unique(valid, return_index=True, return_inverse=True)
    for field in keys.flatten():
        part, distinct = group(field)
        _, first, codes = np.unique(
            codes * (len(distinct) + 1) + part, return_index=True, return_inverse=True
        )
    return codes.astype(np.int64, copy=False), keys.take(pa.array(first))
