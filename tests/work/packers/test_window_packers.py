from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.reducers import AggregateReducer, CombiningReducer, WindowReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import Window, Windowing
from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.keys import decode_keys, encode_keys
from millstream.state.blocks import KEY, PANE, SLOT, to_bytes
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Gate
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.job_clock import JobClock
from millstream.work.keyed_values import keyed
from millstream.work.packers import aggregate_packer, combining_packers
from millstream.work.packers.packer import cut, packer_for
from millstream.work.packers.placing import COUNT, LAST, START
from millstream.work.packers.value_lists import TIMES, decode_lists
from tests.state.python_values import untimed
from tests.work.packers.test_packers import KEYS, canonical
from tests.work.running import SLOTS, job_of

few = settings(untimed, max_examples=60)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
Row = tuple[Any, int, int]
"""Key, value, event time."""


def micros(length: int) -> dt.timedelta:
    return dt.timedelta(microseconds=length)


def nothing(key: Any, values: list[Any], window: Any) -> None:
    return None


FORMS: dict[str, Any] = {
    "function": nothing,
    "combinable": ms.combinable(
        zero=list, add=lambda some, value: [*some, value], merge=lambda left, right: left + right
    ),
    "aggregate": ms.aggregate(n=ms.count(), total=ms.sum(), oldest=ms.first(), newest=ms.last()),
}
forms = pytest.mark.parametrize("form", FORMS)
WINDOWS: dict[str, Window] = {
    "sliding": ms.sliding(micros(21), micros(14)),
    "session": ms.session(micros(5)),
    "count": ms.count_window(3),
    "global": ms.global_window(ms.every(3)),
}
windows = pytest.mark.parametrize("window", WINDOWS)

# Before and after 1970, close together and far apart.
times = st.integers(-60, 60) | st.sampled_from([-(10**15), -(10**15) + 3, 10**15])
rows_of_a_kind: st.SearchStrategy[list[Row]] = st.sampled_from(sorted(KEYS)).flatmap(
    lambda kind: st.lists(st.tuples(KEYS[kind], st.integers(-9, 9), times), max_size=40)
)


def windowed(form: str, window: Window, **options: Any) -> JobVertex:
    return job_of(FORMS[form], windowing=Windowing((window,), **options))


def as_pairs(rows: Sequence[Row]) -> Chunk:
    return Chunk(records=[(key, value, EPOCH + micros(time)) for key, value, time in rows])


def as_columns(rows: Sequence[Row]) -> Chunk:
    batch = pa.RecordBatch.from_arrays(
        [
            encode_keys([key for key, _, _ in rows]),
            pa.array([value for _, value, _ in rows], pa.int64()),
            pa.array([time for _, _, time in rows], UTC),
        ],
        names=[KEY, "value", "at"],
    )
    return Chunk(batch=batch)


@contextmanager
def folding_every(rows: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate_packer, "FOLD_ROWS", rows)
        patch.setattr(combining_packers, "FOLD_ROWS", rows)
        yield


def block_of(job: JobVertex, *chunks: Chunk, folding: bool = True) -> pa.RecordBatch | None:
    """The block of one map task that reads the chunks and flushes once, at the end."""
    packer, gate = packer_for(job, SLOTS, folding=folding), Gate(job, JobClock(), 0)
    count = 0
    for chunk in chunks:
        for values in keyed(job, chunk):
            taken = gate.admit(values, 0, chunk.time).taken
            packer.add(taken.values, taken.times)
        count += len(chunk)
    assert packer.rows == count
    block = packer.flush()
    assert packer.rows == 0 and packer.flush() is None
    return block


def contents(job: JobVertex, block: pa.RecordBatch | None) -> list[tuple[Any, ...]]:
    """The rows of a block: the key, what is internal, and what is known of the values."""
    if block is None:
        return []
    beside = [
        block.column(name).to_pylist()
        for name in block.schema.names
        if name.startswith("millstream.") and name != SLOT
    ]
    found: list[Any]
    if isinstance(job.reducer, AggregateReducer):
        found = [tuple(r.values()) for r in job.reducer.aggregates.result(block).to_pylist()]
    elif isinstance(job.reducer, CombiningReducer):
        found = [accumulator for [accumulator] in decode_lists(block)]
    else:
        found = list(zip(decode_lists(block), block.column(TIMES).to_pylist(), strict=True))
    return list(zip(decode_keys(block.column(KEY)), *beside, found, strict=True))


def reduced(form: str, rows: Sequence[Row]) -> Any:
    """What a block says of the values of some rows, which are in the order of arrival."""
    values, stamps = [row[1] for row in rows], [row[2] for row in rows]
    if form == "function":
        return values, stamps
    if form == "combinable":
        return values
    oldest = values[stamps.index(min(stamps))]
    newest = values[len(stamps) - 1 - stamps[::-1].index(max(stamps))]
    return len(values), sum(values), oldest, newest


def grouped(rows: Sequence[Row], key: Callable[[int, Row], Any]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for at, row in enumerate(rows):
        found[key(at, row)].append(row)
    return found


def bursts(rows: Sequence[Row], gap: int) -> list[list[Row]]:
    """The bursts of one key, each in the order of arrival."""
    numbers: dict[int, int] = {}
    ordered = sorted(range(len(rows)), key=lambda at: rows[at][2])
    for before, at in zip([None, *ordered], ordered, strict=False):
        same = before is not None and rows[at][2] - rows[before][2] < gap
        numbers[at] = numbers[before] if same and before is not None else len(numbers)
    return list(grouped(rows, lambda at, _: numbers[at]).values())


def expected(
    form: str, window: str, rows: Sequence[Row], folding: bool = True
) -> list[tuple[Any, ...]]:
    """The rows of the block, in no order."""
    rows = [(canonical(key), value, time) for key, value, time in rows]
    by_key = grouped(rows, lambda at, row: row[0])
    one_by_one = form != "function" and (window == "count" or not folding)
    if window == "sliding":
        groups = grouped(rows, lambda at, r: (r[0], r[2] // 7 * 7, at if one_by_one else None))
        return [(key, pane, reduced(form, some)) for (key, pane, _), some in groups.items()]
    if window == "session":
        return [
            (key, min(r[2] for r in burst), max(r[2] for r in burst), reduced(form, burst))
            for key, some in by_key.items()
            for burst in bursts(some, 5)
        ]
    if window == "count":
        if one_by_one:
            return [(row[0], row[2], reduced(form, [row])) for row in rows]
        return [(key, reduced(form, some)) for key, some in by_key.items()]
    return [
        (key, len(some), max(row[2] for row in some), reduced(form, some))
        for key, some in by_key.items()
    ]


def chunks_of(
    rows: Sequence[Row], size: int, make: Callable[[Sequence[Row]], Chunk]
) -> list[Chunk]:
    return [make(rows[at : at + size]) for at in range(0, len(rows), size)]


# -- layouts ---------------------------------------------------------------------------------


@forms
@windows
@few
@given(
    rows=rows_of_a_kind,
    size=st.integers(1, 12),
    fold=st.integers(1, 20),
    columns=st.booleans(),
    folding=st.booleans(),
)
def test_a_block_has_the_values_of_each_pane_burst_or_key(
    form: str,
    window: str,
    rows: list[Row],
    size: int,
    fold: int,
    columns: bool,
    folding: bool,
) -> None:
    job = windowed(form, WINDOWS[window])
    if columns:
        job = replace(job, time="at")
    apart = folding or window != "sliding"  # only time windows are ever left unfolded

    with folding_every(fold):
        block = block_of(
            job, *chunks_of(rows, size, as_columns if columns else as_pairs), folding=apart
        )

    found = contents(job, block)
    assert sorted(found, key=repr) == sorted(expected(form, window, rows, apart), key=repr)


@forms
@windows
@few
@given(rows=rows_of_a_kind, later=st.sets(st.integers(1, SLOTS - 1)))
def test_the_same_input_gives_the_same_bytes_by_slot_and_hash(
    form: str, window: str, rows: list[Row], later: set[int]
) -> None:
    job = windowed(form, WINDOWS[window])

    first, second = (block_of(job, as_pairs(rows)) for _ in range(2))

    if first is None or second is None:
        assert not rows
        return
    assert to_bytes(first) == to_bytes(second)
    hashes = hash_column(first.column(KEY))
    places = list(zip(first.column(SLOT).to_pylist(), hashes.tolist(), strict=True))
    assert places == sorted(places)
    assert first.column(SLOT).to_pylist() == slot_of(hashes, SLOTS).tolist()
    shares = cut(first, SLOTS, [0, *sorted(later)])
    assert sum(part.num_rows for _, part in shares) == first.num_rows


@forms
@pytest.mark.parametrize(
    ("window", "internal"),
    [("sliding", [PANE]), ("session", [START, LAST]), ("global", [COUNT, LAST])],
)
def test_internal_columns_come_after_key_and_slot_and_are_int64(
    form: str, window: str, internal: list[str]
) -> None:
    block = block_of(windowed(form, WINDOWS[window]), as_pairs([("a", 1, 2), ("b", 1, 3)]))

    assert block is not None
    assert block.schema.names[: 2 + len(internal)] == [KEY, SLOT, *internal]
    assert all(block.schema.field(name).type == pa.int64() for name in internal)
    if form == "function":
        assert block.schema.field(TIMES).type == pa.list_(pa.int64())


@forms
def test_rows_of_one_key_are_in_the_order_of_panes(form: str) -> None:
    rows = [("a", 1, 50), ("b", 1, 0), ("a", 2, -50), ("a", 3, 7), ("b", 1, -9)]

    block = block_of(windowed(form, WINDOWS["sliding"]), as_pairs(rows))

    found = [(row[0], row[1]) for row in contents(windowed(form, WINDOWS["sliding"]), block)]
    assert [pane for key, pane in found if key == "a"] == [-56, 7, 49]
    assert [pane for key, pane in found if key == "b"] == [-14, 0]


def test_times_before_1970_belong_to_the_pane_that_began_before_them() -> None:
    job = windowed("function", ms.tumbling(micros(10)))

    block = block_of(job, as_pairs([("a", 1, -1), ("a", 2, -10), ("a", 3, -11), ("a", 4, 0)]))

    assert contents(job, block) == [
        ("a", -20, ([3], [-11])),
        ("a", -10, ([1, 2], [-1, -10])),
        ("a", 0, ([4], [0])),
    ]


def test_a_burst_continues_while_values_are_less_than_a_gap_apart() -> None:
    job = windowed("function", ms.session(micros(5)))

    block = block_of(job, as_pairs([("a", 1, 9), ("a", 2, 0), ("a", 3, 4), ("a", 4, 14)]))

    assert contents(job, block) == [
        ("a", 0, 4, ([2, 3], [0, 4])),
        ("a", 9, 9, ([1], [9])),
        ("a", 14, 14, ([4], [14])),
    ]


def test_separate_bursts_merge_if_a_later_value_lies_between() -> None:
    job = windowed("aggregate", ms.session(micros(5)))

    with folding_every(2):
        block = block_of(
            job,
            as_pairs([("a", 1, 0), ("a", 2, 8)]),
            as_pairs([("b", 1, 100), ("a", 3, 4)]),
        )

    assert sorted(contents(job, block)) == [
        ("a", 0, 8, (3, 6, 1, 2)),
        ("b", 100, 100, (1, 1, 1, 1)),
    ]


@pytest.mark.parametrize("form", ["combinable", "aggregate"])
def test_a_long_burst_reaches_over_short_ones_within_it(form: str) -> None:
    job = windowed(form, ms.session(micros(5)))
    long = [("a", 1, 0), ("a", 2, 4), ("a", 3, 8), ("b", 1, 0)]
    short = [("a", 4, 2), ("a", 5, 12), ("b", 2, 12)]

    with folding_every(3):
        block = block_of(job, as_pairs(long), as_pairs(short))

    spans = sorted(row[:3] for row in contents(job, block))
    assert spans == [("a", 0, 12), ("b", 0, 0), ("b", 12, 12)]


# -- time and keys ---------------------------------------------------------------------------


@forms
def test_in_processing_time_all_values_are_of_now(form: str) -> None:
    job = windowed(form, ms.tumbling(micros(10)), processing_time=True)
    gate, packer = Gate(job, JobClock(), 25), packer_for(job, SLOTS, folding=True)

    for values in keyed(job, Chunk(records=[("a", 1), ("a", 2)])):
        taken = gate.admit(values, 0).taken
        packer.add(taken.values, taken.times)

    [(key, pane, found)] = contents(job, packer.flush())
    assert (key, pane) == ("a", 20)
    assert (
        found
        == {
            "function": ([1, 2], [25, 25]),
            "combinable": [1, 2],
            "aggregate": (2, 3, 1, 2),
        }[form]
    )


def test_in_processing_time_first_and_last_still_go_by_the_times_of_values() -> None:
    job = windowed("aggregate", ms.tumbling(micros(10)), processing_time=True)

    block = block_of(job, as_pairs([("a", 1, 9), ("a", 2, 100), ("a", 3, 5)]))

    assert contents(job, block) == [("a", 0, (3, 6, 3, 2))]


@forms
def test_values_take_the_time_of_their_chunk_where_they_have_none(form: str) -> None:
    job = windowed(form, WINDOWS["sliding"])
    early, later = (Chunk(records=[("a", value)], time=time) for value, time in [(1, -3), (2, 8)])

    block = block_of(job, early, later)

    panes = [(row[0], row[1]) for row in contents(job, block)]
    assert panes == [("a", -7), ("a", 7)]


@forms
def test_empty_chunks_give_no_block(form: str) -> None:
    job = replace(windowed(form, WINDOWS["sliding"]), time="at")
    empty = as_columns([("a", 1, 1)]).batch().slice(0, 0)

    assert block_of(job, Chunk(batch=empty)) is None


@forms
def test_keys_that_python_takes_for_one_are_refused(form: str) -> None:
    job = windowed(form, WINDOWS["sliding"])

    mixed: list[tuple[Any, Any]] = [(1, True), (1, 1.0), ((1, "x"), (1.0, "x"))]
    for one, other in mixed:
        for batches in ([[one], [other]], [[one, other]]):
            with pytest.raises(RecordError, match=r"job 'job' gave the key .*keys of one type"):
                block_of(job, *[as_pairs([(key, 1, 0) for key in keys]) for keys in batches])


@forms
def test_a_key_that_cannot_be_hashed_is_named(form: str) -> None:
    with pytest.raises(RecordError, match=r"map of job 'job'.*\[1\]"):
        block_of(windowed(form, WINDOWS["sliding"]), as_pairs([([1], 1, 0)]))


@pytest.mark.parametrize("part", ["add", "merge"])
def test_what_a_combinable_raises_names_its_key(part: str) -> None:
    def fail(left: Any, right: Any) -> Any:
        raise ValueError("no")

    parts = {"zero": int, "add": lambda a, b: a, "merge": lambda a, b: a, part: fail}
    job = job_of(ms.combinable(**parts), windowing=Windowing((WINDOWS["sliding"],)))

    with (
        folding_every(1),
        pytest.raises(UserFunctionError, match=f"{part} of the reducer of job 'job'") as caught,
    ):
        block_of(job, as_pairs([("a", 1, 0)]), as_pairs([("a", 1, 0)]))

    assert caught.value.key == "'a' (str)"


def test_counting_reads_no_values() -> None:
    job = job_of(ms.count(), windowing=Windowing((WINDOWS["sliding"],)))
    pairs = [("a", object(), EPOCH), ("a", math.inf, EPOCH)]

    block = block_of(job, Chunk(records=pairs))

    assert block is not None and isinstance(job.reducer, AggregateReducer)
    assert job.reducer.aggregates.result(block).to_pylist() == [{"value": 2}]


def test_reduce_functions_may_be_given_any_objects() -> None:
    job = job_of(nothing, windowing=Windowing((WINDOWS["sliding"],)))
    assert isinstance(job.reducer, WindowReducer)

    block = block_of(job, Chunk(records=[("a", {1}, EPOCH), ("a", None, EPOCH)]))

    assert contents(job, block) == [("a", 0, ([{1}, None], [0, 0]))]
