"""Running ``map``, ``flat_map``, ``filter``, ``split`` and Arrow steps on chunks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, compress

import pyarrow as pa

from millstream.flow.functions import Function
from millstream.flow.vertices import BatchStep, RecordStep, SplitVertex
from millstream.state.values import ValueTypeError, value_text
from millstream.work.chunk import Chunk
from millstream.work.failures import calling, calling_each, record_error


def run_step(step: RecordStep | BatchStep, chunk: Chunk) -> Iterator[Chunk]:
    """Apply one step to a chunk; the results have the chunk's time."""
    if isinstance(step, BatchStep):
        for batch in call_arrow("map", step.function, chunk.plain()):
            yield Chunk(batch=batch, time=chunk.time)
        return
    records, function = chunk.records(), step.function
    with calling_each(step.kind, function, records) as turn:
        # Comprehensions: list(map(...)) would take a StopIteration that escapes from a user's
        # function for the end of the records.
        if step.kind == "filter":
            kept = [bool(function(record)) for record in turn]
        else:
            found = [function(record) for record in turn]
    if step.kind == "flat_map":
        with calling_each(step.kind, function, records, found) as turn:
            found = list(chain.from_iterable(turn))
    if step.kind == "filter":
        yield _filtered(chunk, kept)
        return
    result = Chunk(records=found, schema=step.schema, time=chunk.time)
    if step.schema is not None:
        try:
            result.batch()
        except ValueTypeError as misfit:
            raise record_error(
                step.kind, function, f"gave {misfit}", "return that type, or declare output="
            ) from None
    yield result


def run_split(split: SplitVertex, chunk: Chunk) -> tuple[Chunk, Chunk]:
    """The records for which the predicate holds, and the others; it is called once for each."""
    with calling_each("split", split.function, chunk.records()) as turn:
        held = [bool(split.function(record)) for record in turn]
    return _filtered(chunk, held), _filtered(chunk, [not holds for holds in held])


def _filtered(chunk: Chunk, kept: list[bool]) -> Chunk:
    if chunk.is_batch:  # keep its types
        batch = chunk.batch().filter(pa.array(kept, pa.bool_()))
        return Chunk(batch=batch, time=chunk.time)
    return Chunk(records=list(compress(chunk.records(), kept)), time=chunk.time)


def call_arrow(role: str, function: Function, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Call a user's Arrow function; it may return a batch or a table, or yield several."""
    with calling(role, function):
        result = function(batch)
        several = [result] if isinstance(result, pa.RecordBatch | pa.Table) else result
        if several is None or isinstance(several, str | bytes | dict):
            several = [several]
        several = list(several)
    for item in several:
        if isinstance(item, pa.Table):
            yield from item.to_batches()
        elif isinstance(item, pa.RecordBatch):
            yield item
        else:
            raise record_error(
                role,
                function,
                f"gave {value_text(item)} where a pyarrow.RecordBatch is expected",
                "return a RecordBatch or a Table, or yield several",
            )
