"""Concatenation of columns and batches of one job, with errors that name the job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import key_text
from millstream.ring.keys import decode_keys
from millstream.state.aggregates.errors import AggregateError, SumOverflowError
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import KEY
from millstream.state.values import unify
from millstream.work.failures import RecordError, calling, record_error
from millstream.work.keyed_batches import KeyedBatch
from millstream.work.keyed_values import one_key_type


@contextmanager
def aggregating(
    job: JobVertex, keys: pa.Array | None = None, of_groups: Ints | None = None
) -> Iterator[None]:
    """Report errors of built-in aggregates as errors of the job's reducer.

    ``keys`` has the key of each group, if they are known; or ``of_groups`` its place there.
    """
    try:
        with calling(f"reducer of job {job.name!r}", type(job.reducer)):
            yield
    except AggregateError as problem:
        problem.job = job.name
        if keys is not None and isinstance(problem, SumOverflowError):
            at = problem.group if of_groups is None else int(of_groups[problem.group])
            problem.key = key_text(decode_keys(keys.slice(at, 1))[0])
        raise


def needed_columns(
    job: JobVertex, needed: Collection[str], batches: list[KeyedBatch]
) -> dict[str, pa.Array]:
    """The value columns that aggregates read, over all batches."""
    names = column_names(batches)
    if set(needed) <= set(names):  # else the aggregates report the missing column
        names = [name for name in names if name in needed]
    return {
        name: concat_columns(job, name, [b.values.get(name) for b in batches]) for name in names
    }


def column_names(batches: list[KeyedBatch]) -> list[str]:
    """The names of the value columns of all batches."""
    return list(dict.fromkeys(name for batch in batches for name in batch.values))


def concat_times(batches: list[KeyedBatch]) -> pa.Array | None:
    """The event times of all batches, if they have any."""
    times = [batch.times for batch in batches if batch.times is not None]
    return pa.concat_arrays(times) if times else None


def concat_keys(job: JobVertex, parts: list[pa.Array]) -> pa.Array:
    """Concatenate key columns; they must be of one type, except for null."""
    kind = one_key_type(job, parts)
    return pa.concat_arrays([part if part.type == kind else part.cast(kind) for part in parts])


def concat_columns(job: JobVertex, name: str, parts: Sequence[pa.Array | None]) -> pa.Array:
    """Concatenate a value column of several batches, which all must have, of types that fit."""
    arrays = [part for part in parts if part is not None]
    if len(arrays) < len(parts):
        raise record_error(
            f"map of job {job.name!r}",
            None,
            f"gave the column {name!r} in some batches only",
            "give the same columns in every batch",
        )
    kind = unify(array.type for array in arrays)
    fix = "give one type (cast values in the map)"
    if kind is None:
        raise _several_types(job, name, [array.type for array in arrays], fix)
    try:
        return pa.concat_arrays([a if a.type == kind else a.cast(kind) for a in arrays])
    except pa.ArrowInvalid:  # an integer that no float equals
        raise _several_types(job, name, [array.type for array in arrays], fix) from None


def _several_types(
    job: JobVertex, name: str, kinds: Sequence[pa.DataType], fix: str
) -> RecordError:
    names = " and ".join(sorted({str(kind) for kind in kinds if not pa.types.is_null(kind)}))
    return record_error(
        f"input of job {job.name!r}", None, f"has {name} values of types {names}", fix
    )


def concat_batches(job: JobVertex, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches of the same columns, whose types may differ by null, or as numbers."""
    if len(batches) == 1:
        return batches[0]
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    columns = []
    for name in names:
        parts = [b.column(name) if name in b.schema.names else None for b in batches]
        if name == KEY:
            columns.append(concat_keys(job, [part for part in parts if part is not None]))
        else:
            columns.append(concat_columns(job, name, parts))
    return pa.RecordBatch.from_arrays(columns, names=names)


def as_batch(given: object) -> pa.RecordBatch | None:
    """A table or batch of a user as one batch; None if it is neither."""
    if isinstance(given, pa.Table):
        batches = given.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=given.schema)
    return given if isinstance(given, pa.RecordBatch) else None
