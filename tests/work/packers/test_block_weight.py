"""Blocks that are bounded by bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from millstream.state.blocks import to_bytes
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError
from millstream.work.job_clock import JobClock
from millstream.work.keyed_batches import KeyedBatch, Pairs, Timed
from millstream.work.map_side import MapSide
from millstream.work.packers import value_lists
from millstream.work.packers.block_weight import Weigher, weight_of
from millstream.work.program import program_of

LIMIT = 100_000
HOUR = ms.tumbling(timedelta(hours=1))
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


class Blocks:
    """Keeps what a map side sends, flush by flush."""

    def __init__(self) -> None:
        self.flushes: list[list[bytes]] = []
        self.counts: list[int] = []

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        if count:
            self.flushes.append([to_bytes(rows) for _, rows in shares])
            self.counts.append(count)

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        raise AssertionError("nothing goes to sinks")

    to_frame = to_sink

    @property
    def sizes(self) -> list[int]:
        return [sum(map(len, flush)) for flush in self.flushes]


def sent(records: Sequence[Any], chunk: int = 1000, **options: Any) -> Blocks:
    """What a map task sends that reads these records, some at a time."""
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map_reduce("job", map=lambda record: [record], **options)
    program = program_of(plan(flow), 16)
    [job] = program.jobs
    blocks = Blocks()
    side = MapSide(
        program,
        blocks,
        time=0,
        clocks={job: JobClock()},
        key_types={},
        partitions=(0, 8),
        flush_bytes=LIMIT,
    )
    for start in range(0, len(records), chunk):
        side.read(0, Chunk(records=records[start : start + chunk]))
    side.finish()
    return blocks


def listed(key: Any, values: list[Any], state: Any) -> Iterator[Any]:
    yield key, len(values)


def windowed(key: Any, values: list[Any], window: Any) -> Iterator[Any]:
    yield key, len(values)


class Longest:
    """Keeps the longest text of a key."""

    def zero(self) -> str:
        return ""

    def add(self, one: str, other: str) -> str:
        return max(one, other, key=len)

    merge = add

    def result(self, one: str) -> str:
        return one


def rows_function(table: pa.Table, state: Any) -> pa.Table:
    return table


FORMS: dict[str, dict[str, Any]] = {
    "function": {"reduce": listed},
    "combinable": {"reduce": Longest()},
    "arrow": {"reduce": ms.arrow(rows_function)},
    "window": {"reduce": windowed, "window": HOUR},
    "aggregate": {"reduce": ms.distinct("value")},
}


def texts(count: int, length: int, times: bool) -> list[Any]:
    pairs = [(f"key{n}", f"{n:x}" * (length // len(f"{n:x}"))) for n in range(count)]
    return [(*pair, NOON) for pair in pairs] if times else pairs


@pytest.mark.parametrize("length", [50, 1000, 30_000])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_map_task_sends_at_once_is_bounded_by_bytes(form: str, length: int) -> None:
    options = FORMS[form]
    count = 10 * LIMIT // length
    records = texts(count, length, "window" in options)

    found = sent(records, **options)

    assert sum(found.counts) == count
    assert len(found.flushes) >= 5
    # Keys, slots, offsets and schemas come on top of the values.
    assert max(found.sizes) <= 2 * LIMIT + 100 * count + 4000
    assert found.flushes == sent(records, **options).flushes  # at the same places, always


OBJECTS: dict[str, Callable[[int], Any]] = {
    "bytes": lambda n: bytes(1000) + bytes([n % 256]),
    "tuples": lambda n: (n, "x" * 1000),
    "lists": lambda n: ["x" * 100] * 10 + [n],
    "dictionaries": lambda n: {"n": n, "text": "x" * 1000},
    "arrays": lambda n: np.full(125, n),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_values_of_all_kinds_are_weighed(kind: str) -> None:
    found = sent([(n, OBJECTS[kind](n)) for n in range(1000)], reduce=listed)

    assert sum(found.counts) == 1000 and len(found.flushes) >= 5


def test_small_values_are_not_sent_one_by_one() -> None:
    found = sent([(n % 10, 1) for n in range(5000)], reduce=listed)

    assert len(found.flushes) == 1


def test_a_few_large_values_among_many_small_ones_are_not_missed() -> None:
    texts = ["x" * LIMIT if n % 1500 == 7 else "x" for n in range(9000)]

    found = sent([(n, text) for n, text in enumerate(texts)], reduce=listed)

    assert len(found.flushes) >= 6


def test_aggregated_values_count_with_their_accumulators_only() -> None:
    found = sent([(n % 10, "x" * 1000) for n in range(1000)], reduce=ms.count())

    assert len(found.flushes) == 1


def test_a_batch_beyond_the_bound_is_cut() -> None:
    batch = KeyedBatch(
        pa.array(range(1000)),
        {"value": pa.array([f"{n:03}" * 100 for n in range(1000)])},
        pa.array([0] * 1000),
    )
    flow = job_vertex()

    parts: list[tuple[Any, int]] = list(Weigher(flow, limit=20_000).parts(batch))

    assert [weight for _, weight in parts] == [part.nbytes for part, _ in parts]
    assert 10 < len(parts) < 40 and max(weight for _, weight in parts) <= 20_000
    values = [text for part, _ in parts for text in part.values["value"].to_pylist()]
    assert values == batch.values["value"].to_pylist()
    assert [len(part.times) for part, _ in parts] == [len(part.keys) for part, _ in parts]


def test_times_are_cut_with_their_values() -> None:
    pairs = Pairs([(n, "x" * 1000) for n in range(100)], False)

    parts = list(Weigher(job_vertex(), limit=20_000).parts(Timed(pairs, np.arange(100))))

    assert len(parts) > 4
    assert np.concatenate([part.times for part, _ in parts]).tolist() == list(range(100))
    assert all(len(part.times) == len(part.values.items) for part, _ in parts)  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["pairs", "columns"])
def test_a_value_too_large_for_a_block_is_reported_with_job_and_key(form: str) -> None:
    pairs = [("light", "x"), ("heavy", "x" * 5000), ("light", "x")]
    values: Pairs | KeyedBatch = Pairs(pairs, False)
    if form == "columns":
        keys, texts = zip(*pairs, strict=True)
        values = KeyedBatch(pa.array(keys), {"value": pa.array(texts)}, None)

    with pytest.raises(RecordError, match=r"'job'.* gave a value of 5,\d+ bytes .*'heavy'.*parts"):
        list(Weigher(job_vertex(), limit=1000, largest=2000).parts(values))


def test_values_that_arrow_cannot_hold_in_one_column_are_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Arrow answers beyond 2 GiB: with an array in several chunks."""
    monkeypatch.setattr(
        value_lists,
        "encode_column",
        lambda name, values: (pa.field(name, pa.string()), pa.chunked_array([["x"]])),
    )

    with pytest.raises(RecordError, match=r"'job'.* more than 2 GiB together"):
        value_lists.encode_lists(job_vertex(), [["x"]])


def test_texts_weigh_what_they_take_as_utf_8() -> None:
    assert weight_of("x" * 1000) == 1000 and weight_of("é" * 1000) == 2000
    assert weight_of("\ud800" * 1000) == 3000  # which only a pickle carries


def job_vertex() -> Any:
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map_reduce("job", map=lambda record: [record], reduce=listed)
    [(_, job)] = plan(flow).jobs
    return job
