from __future__ import annotations

import datetime as dt
import math
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.reducers import StatefulReducer
from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import describe
from millstream.ring.keys import NAN, canonical_key, decode_keys, infer_type
from millstream.state.blocks import KEY, SLOT, to_bytes
from millstream.state.values import is_pickled
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.packers import aggregate_packer, key_counts
from millstream.work.packers.packer import cut, packer_for
from tests.state.python_values import Basket, same, untimed
from tests.work.running import SLOTS, Running, blocks_of, blocks_of_pairs, job_of


class Point(NamedTuple):
    """A tuple with names."""

    x: Any
    y: Any


NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def nothing(key: Any, values: list[Any], state: Any) -> None:
    return None


def plus(left: Any, right: Any) -> Any:
    return left + right


FOLD = ms.combinable(zero=int, add=plus, merge=plus)
FORMS: dict[str, Any] = {
    "function": nothing,
    "combinable": FOLD,
    "aggregate": ms.aggregate(n=ms.count(), total=ms.sum()),
    "arrow": ms.arrow(lambda rows, state: (rows, None)),
}
JOBS = {form: job_of(reduce) for form, reduce in FORMS.items()}
forms = pytest.mark.parametrize("form", FORMS)
few = settings(untimed, max_examples=40)

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "text": st.none() | st.text(max_size=3),
    "int": st.none() | st.integers(-5, 5),
    "float": st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, float("nan"), -math.inf]),
    "bool": st.none() | st.booleans(),
    "tuple": st.none() | st.tuples(st.none() | st.integers(0, 2), st.none() | st.text(max_size=1)),
    "empty": st.sampled_from([None, ()]),
}
pairs_of_a_kind = st.sampled_from(sorted(KEYS)).flatmap(
    lambda kind: st.lists(st.tuples(KEYS[kind], st.integers(-9, 9)), max_size=30)
)


def canonical(key: Any) -> Any:
    """The key as the job sees it: one NaN, no −0.0."""
    if isinstance(key, tuple):
        return tuple(map(canonical, key))
    if isinstance(key, float):
        return NAN if math.isnan(key) else key + 0.0
    return key


def values_by_key(blocks: list[pa.RecordBatch]) -> dict[Any, list[Any]]:
    """What a reduce function would be given."""
    seen: dict[Any, list[Any]] = {}

    def reduce(key: Any, values: list[Any], state: Any) -> None:
        seen[key] = values

    Running(replace(JOBS["function"], reducer=StatefulReducer(reduce))).feed(blocks)
    return seen


@forms
@few
@given(pairs=pairs_of_a_kind)
def test_blocks_are_the_same_bytes_for_the_same_input(
    form: str, pairs: list[tuple[Any, int]]
) -> None:
    job = JOBS[form]

    first, second = (list(map(to_bytes, blocks_of_pairs(job, pairs))) for _ in range(2))

    assert first == second


@forms
@few
@given(pairs=pairs_of_a_kind, later=st.sets(st.integers(1, SLOTS - 1)))
def test_the_share_of_a_partition_is_one_slice_in_canonical_order(
    form: str, pairs: list[tuple[Any, int]], later: set[int]
) -> None:
    bounds = [0, *sorted(later), SLOTS]
    for block in blocks_of_pairs(JOBS[form], pairs):
        shares = list(cut(block, SLOTS, bounds[:-1]))

        assert len(dict(shares)) == len(shares)
        # By their text, because NaN differs from itself.
        together = [row for _, rows in shares for row in rows.to_pylist()]
        assert repr(together) == repr(block.to_pylist())
        for part, rows in shares:
            slots = range(bounds[part], bounds[part + 1])
            assert set(rows.column(SLOT).to_pylist()) <= set(slots)


@few
@given(pairs_of_a_kind)
def test_all_values_of_a_key_arrive_in_the_order_in_which_they_came(
    pairs: list[tuple[Any, int]],
) -> None:
    expected: dict[Any, list[int]] = defaultdict(list)
    for key, value in pairs:
        expected[canonical(key)].append(value)

    assert same(values_by_key(blocks_of_pairs(JOBS["function"], pairs)), dict(expected))


@pytest.mark.parametrize("wrap", [lambda key: key, lambda key: (key, "a")], ids=["bare", "tuple"])
def test_every_nan_is_one_key_whose_values_keep_their_order(wrap: Callable[[float], Any]) -> None:
    one, other = float("nan"), float("nan")
    pairs = [(wrap(key), number) for number, key in enumerate([one, other, one, 1.5, other])]
    combined: list[Any] = []

    def combine(key: Any, values: list[int]) -> list[int]:
        combined.append(values)
        return values

    [block] = blocks_of_pairs(JOBS["function"], pairs)
    blocks_of_pairs(replace(JOBS["function"], combine=combine), pairs)

    assert sorted(block.column("values").to_pylist()) == [[0, 1, 2, 4], [3]]
    assert sorted(combined) == [[0, 1, 2, 4], [3]]


@forms
def test_every_kind_of_key_lands_in_one_row_of_state(form: str) -> None:
    for kind, keys in (
        ("float", [math.nan, float("nan"), 0.0, -0.0, None]),
        ("tuple", [(math.nan, "a"), (float("nan"), "a"), (0.0, None), (-0.0, None), None]),
    ):
        reduce = FORMS[form]
        if form == "function":
            reduce = _count
        if form == "arrow":
            reduce = ms.arrow(_first_rows)
        running = Running(job_of(reduce))

        for _ in range(2):
            running.epoch([(key, 1) for key in keys])

        assert len(running.state()) == 3, kind


def _count(key: Any, values: list[int], state: Any) -> None:
    state["n"] = state.get("n", 0) + sum(values)


def _first_rows(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
    keys = decode_keys(rows.column(KEY).combine_chunks())
    firsts = [keys.index(key) for key in dict.fromkeys(keys)]
    return rows.take(firsts), None


@pytest.mark.parametrize(
    "values",
    [
        [1, 2**63],
        [1, True, 1.0],
        ["a", b"a", None],
        [None, None],
        [(1, 2), [1, 2]],
        [Basket(["egg"]), {1}],
        [1.5, math.nan],
        [1.5, 1.5, 1.5],
        [0.0, -0.0, 0.0],
        [-0.0, -0.0],
        [math.nan, math.nan],
        [1, 1, True],
        [2**70, 2**70],
        ["a", "a"],
        [b"\xff", b"\xff"],
        ["\ud800"],
        ["\ud800", "\ud800"],
        [NOON, NOON.replace(tzinfo=None), NOON.date()],
    ],
    ids=repr,
)
def test_values_of_any_kind_arrive_as_they_were(values: list[Any]) -> None:
    blocks = blocks_of_pairs(job_of(nothing), [("k", value) for value in values])

    assert same(values_by_key(blocks), {"k": values})


@pytest.mark.parametrize(
    "batches",
    [
        [[1, 1], [1]],
        [[1, 1], [2], [1]],
        [[1], [True]],
        [[0.0], [-0.0]],
        [[1], [None], [1]],
        [[[1]], [[1]]],
    ],
    ids=repr,
)
def test_values_that_repeat_and_then_do_not_arrive_as_they_were(batches: list[list[Any]]) -> None:
    chunks = [Chunk(records=[("k", value) for value in values]) for values in batches]
    chunks.append(Chunk(records=[("j", batches[0][0])]))

    found = values_by_key(blocks_of(JOBS["function"], *chunks))

    assert same(found["k"], [value for values in batches for value in values])
    assert same(found["j"], [batches[0][0]])


def test_the_values_of_keys_are_lists_of_their_own() -> None:
    def grow(key: str, values: list[int], state: Any) -> None:
        values.append(9)
        state["seen"] = values

    running = Running(job_of(grow), tasks=1)

    running.epoch([("a", 1), ("b", 1), ("b", 1)])

    assert running.state() == {"a": {"seen": [1, 9]}, "b": {"seen": [1, 1, 9]}}


def test_combine_gets_all_values_also_when_they_repeat() -> None:
    job = job_of(nothing, combine=lambda key, values: len(values))

    assert values_by_key(blocks_of_pairs(job, [("a", 1), ("b", 1), ("a", 1)])) == {
        "a": [2],
        "b": [1],
    }


def test_values_of_one_plain_type_are_not_pickled() -> None:
    for value in (1, 1.5, "a", b"a", True):
        [block] = blocks_of_pairs(job_of(nothing), [("k", value)])
        assert not is_pickled(block.schema.field("values"))


def test_an_error_of_pickling_names_the_job() -> None:
    with pytest.raises(RecordError, match="map of job 'job' gave values that cannot be pickled"):
        blocks_of_pairs(job_of(nothing), [("k", threading.Lock())])


# -- several batches, several flushes --------------------------------------------------------


@forms
def test_what_is_flushed_in_several_blocks_adds_up(form: str) -> None:
    rows = [(key, n) for n, key in enumerate("abcab" * 20)]
    reduce = FORMS[form]
    results: list[Any] = []
    for size in (len(rows), 7):
        job = job_of(_sum if form == "function" else ms.arrow(_sums) if form == "arrow" else reduce)
        packer = packer_for(job, SLOTS)
        blocks = []
        for start in range(0, len(rows), size):
            packer.add(Pairs(rows[start : start + size], False))
            blocks.append(packer.flush())
            assert packer.flush() is None
        running = Running(job)
        running.feed([block for block in blocks if block is not None])
        results.append(running.state())

    assert results[0] == results[1]
    assert set(results[0]) == {"a", "b", "c"}


def _sum(key: Any, values: list[int], state: Any) -> None:
    state["value"] = state.get("value", 0) + sum(values)


def _sums(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
    return rows.group_by(KEY).aggregate([("value", "sum")]), None


def test_folding_in_between_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_packer, "FOLD_ROWS", 5)
    job = job_of(FORMS["aggregate"])
    shuffled = [(key, number) for number in range(8) for key in "abcde"]
    random.Random(7).shuffle(shuffled)
    chunks = [Chunk(records=shuffled[at : at + 3]) for at in range(0, len(shuffled), 3)]

    running = Running(job)
    running.feed(blocks_of(job, *chunks))

    assert running.state() == {key: {"n": 8, "total": 28} for key in "abcde"}


@few
@given(pairs=pairs_of_a_kind, fold=st.integers(1, 30))
def test_rows_that_are_only_counted_have_the_accumulators_of_others(
    pairs: list[tuple[Any, int]], fold: int
) -> None:
    counted, others = job_of(ms.count()), job_of(ms.aggregate(value=ms.count(), total=ms.sum()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_counts, "FOLD_ROWS", fold)
        patch.setattr(aggregate_packer, "FOLD_ROWS", fold)
        blocks, expected = blocks_of_pairs(counted, pairs), blocks_of_pairs(others, pairs)

    for block, other in zip(blocks, expected, strict=True):
        assert block.equals(other.select(block.schema.names))


@forms
def test_no_values_give_no_block(form: str) -> None:
    assert blocks_of_pairs(job_of(FORMS[form]), []) == []
    mapped_away = replace(JOBS[form], map=lambda record: [], key=len)
    assert blocks_of_pairs(mapped_away, ["a"]) == []
    packer = packer_for(JOBS[form], SLOTS)
    packer.add(KeyedBatch(pa.array([], pa.string()), {"value": pa.array([], pa.int64())}, None))
    assert packer.flush() is None


# -- keys that a dictionary would take for one -----------------------------------------------


@pytest.mark.parametrize("form", ["function", "combinable"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (True, 1.0),
        (1, 1.0),
        (2.0, 2),
        ((1, "a"), (True, "a")),
        ((None, 1), (None, True)),
        ((1, "x"), (1.0, "x")),
        (("x", (1.0, "y")), ("x", (1, "y"))),
        (np.int64(1), 1.0),
        (np.True_, 1),
        (Point(1, 2), Point(1.0, 2)),
    ],
    ids=repr,
)
def test_keys_of_several_types_are_refused_also_when_they_come_apart(
    form: str, one: Any, other: Any
) -> None:
    job = job_of(FORMS[form])
    together = [Chunk(records=[(one, 1), (other, 1)])]
    apart = [Chunk(records=[(one, 1)]), Chunk(records=[(other, 1)])]
    after_none = [Chunk(records=[(None, 1), (one, 1), (other, 1)])]

    for chunks in (together, apart, after_none):
        with pytest.raises(RecordError) as caught:
            blocks_of(job, *chunks)
        text = str(caught.value)
        assert "job 'job'" in text
        assert repr(canonical_key(other, infer_type([other]))) in text or repr(other) in text
        for key in (one, other):
            assert describe(infer_type([key])) in text


@pytest.mark.parametrize("form", ["function", "combinable"])
def test_keys_of_a_key_function_are_looked_at_too(form: str) -> None:
    job = job_of(FORMS[form], key=lambda record: record)

    with pytest.raises(RecordError, match="key"):
        blocks_of(job, Chunk(records=[1, True]))


@pytest.mark.parametrize("form", ["function", "combinable"])
def test_batches_with_keys_of_several_types_are_refused(form: str) -> None:
    batches = [pa.record_batch({"key": keys, "value": [1]}) for keys in ([1], [True])]

    with pytest.raises(RecordError, match="key"):
        blocks_of(job_of(FORMS[form]), *[Chunk(batch=batch) for batch in batches])


@pytest.mark.parametrize("form", ["aggregate", "arrow"])
def test_columns_with_keys_of_several_types_are_refused(form: str) -> None:
    chunks = [Chunk(records=[(1, 1)]), Chunk(records=[(1.0, 1)])]

    with pytest.raises(RecordError, match=r"job 'job' gave the key 1.0, which is float.* are int"):
        blocks_of(job_of(FORMS[form]), *chunks)


@forms
def test_an_integer_is_no_key_where_floats_are_known_or_declared(form: str) -> None:
    with pytest.raises(RecordError, match="key 1, which is int, but the job's keys are float"):
        blocks_of_pairs(job_of(FORMS[form], key_type=pa.float64()), [(1, 1)])


class Anything:
    """Something that is no key."""

    def __repr__(self) -> str:
        return "Anything()"


@forms
@pytest.mark.parametrize("key", [[1], {}, Anything(), ("a", [1])], ids=repr)
@pytest.mark.parametrize("first", ["a", None, ("a", "b")], ids=repr)
def test_what_can_be_no_key_is_named(form: str, key: Any, first: Any) -> None:
    with pytest.raises(RecordError, match="map of job 'job' gave the key"):
        blocks_of_pairs(job_of(FORMS[form]), [(first, 1), (key, 1)])


@forms
def test_tuples_with_none_go_with_tuples_of_any_type(form: str) -> None:
    job = job_of(FORMS[form])
    chunks = [Chunk(records=[((1, None), 1)]), Chunk(records=[((None, "a"), 1), (None, 1)])]

    apart = [block for chunk in chunks for block in blocks_of(job, chunk)]
    together = blocks_of(job, *chunks)

    assert len(values_or_rows(job, apart)) == len(values_or_rows(job, together)) == 3


def values_or_rows(job: JobVertex, blocks: list[pa.RecordBatch]) -> set[Any]:
    seen: set[Any] = set()
    for block in blocks:
        seen.update(decode_keys(block.column(KEY)))
    if job.reducer != job_of(FORMS["arrow"]).reducer:
        running = Running(job)
        running.feed(blocks)
    return seen


# -- combining -------------------------------------------------------------------------------


def test_combine_thins_out_the_values_of_a_key() -> None:
    job = job_of(nothing, combine=lambda key, values: sum(values))

    assert values_by_key(blocks_of_pairs(job, [("a", 1), ("b", 2), ("a", 3)])) == {
        "a": [4],
        "b": [2],
    }


def test_combine_may_yield_several_values_or_none() -> None:
    def evens(key: str, values: list[int]) -> Iterator[int]:
        yield from (value for value in values if value % 2 == 0)

    for combine in (evens, lambda key, values: evens(key, values)):
        job = job_of(nothing, combine=combine)
        found = values_by_key(blocks_of_pairs(job, [("a", 2), ("b", 1), ("a", 4)]))
        assert found == {"a": [2, 4]}

    assert blocks_of_pairs(job_of(nothing, combine=evens), [("b", 1)]) == []


def test_an_error_in_combine_names_the_key() -> None:
    job = job_of(nothing, combine=lambda key, values: 1 / 0)

    with pytest.raises(UserFunctionError) as caught:
        blocks_of_pairs(job, [("a", 1)])

    assert (caught.value.role, caught.value.key) == ("combine of job 'job'", "'a' (str)")


def test_an_error_in_add_names_the_key() -> None:
    with pytest.raises(UserFunctionError) as caught:
        blocks_of_pairs(job_of(FOLD), [("a", 1), ("b", "x")])

    assert (caught.value.function, caught.value.key) == ("plus", "'b' (str)")


def test_counting_does_not_look_at_the_values() -> None:
    running = Running(job_of(ms.count()))

    running.epoch([("a", object), ("a", 1), ("a", "x"), ("b", Basket([]))])

    assert running.state() == {"a": 3, "b": 1}


def test_only_the_columns_that_are_read_must_agree() -> None:
    job = job_of(ms.sum("n"))
    chunks = [
        Chunk(records=[("a", {"n": 1, "note": 1})]),
        Chunk(records=[("a", {"n": 2, "note": "x"})]),
        Chunk(records=[("a", {"n": 3.5})]),
    ]
    running = Running(job)

    running.feed(blocks_of(job, *chunks))

    assert running.state() == {"a": 6.5}


def test_a_column_that_an_aggregate_misses_is_named() -> None:
    with pytest.raises(ms.ConfigError, match="reads column 'n', which is not among: m"):
        blocks_of_pairs(job_of(ms.sum("n")), [("a", {"m": 1})])


# -- columns for Arrow reducers --------------------------------------------------------------


def arrow_rows(job: JobVertex, *chunks: Chunk) -> pa.Table:
    return pa.Table.from_batches(blocks_of(job, *chunks)).drop_columns([SLOT])


def test_a_column_called_slot_is_the_users() -> None:
    rows = pa.record_batch({"key": ["a"], "slot": [99]})

    table = arrow_rows(job_of(FORMS["arrow"]), Chunk(batch=rows))

    assert table.to_pylist() == [{"key": "a", "slot": 99}]


def test_a_value_that_is_a_pair_keeps_both_items() -> None:
    table = arrow_rows(job_of(FORMS["arrow"]), Chunk(records=[("a", (1, 2))]))

    assert table.to_pylist() == [{"key": "a", "_1": 1, "_2": 2}]


def test_a_value_column_that_would_hide_the_key_or_the_time_is_refused() -> None:
    rows = pa.record_batch({"id": [1], "key": ["x"], "time": [2], "at": [NOON]})

    with pytest.raises(RecordError, match="a value column 'key'"):
        arrow_rows(job_of(FORMS["arrow"], key="id"), Chunk(batch=rows))
    with pytest.raises(RecordError, match="a value column 'time'"):
        arrow_rows(job_of(FORMS["arrow"], key="key", time="at"), Chunk(batch=rows))
    with pytest.raises(RecordError, match="a value column 'key'"):
        arrow_rows(job_of(FORMS["arrow"]), Chunk(records=[("a", {"key": 1})]))


def test_a_column_in_some_batches_only_is_refused_whichever_comes_first() -> None:
    chunks = [Chunk(records=[("a", {"n": 1})]), Chunk(records=[("a", {"n": 1, "m": 2})])]

    for order in (chunks, chunks[::-1]):
        with pytest.raises(RecordError, match="'m' in some batches only"):
            arrow_rows(job_of(FORMS["arrow"]), *order)


def test_numbers_of_several_types_become_floats_and_others_are_refused() -> None:
    job = job_of(FORMS["arrow"])
    ints, floats = Chunk(records=[("a", 1)]), Chunk(records=[("a", 2.5)])

    assert sorted(arrow_rows(job, ints, floats).column("value").to_pylist()) == [1.0, 2.5]
    with pytest.raises(RecordError, match="value values of types int64 and string"):
        arrow_rows(job, ints, Chunk(records=[("a", "x")]))
    with pytest.raises(RecordError, match="value values of types double and int64"):
        arrow_rows(job, floats, Chunk(records=[("a", 2**53 + 1)]))


# -- event times -----------------------------------------------------------------------------

LATER = NOON + dt.timedelta(seconds=5)


def test_event_times_travel_beside_the_values_of_a_key() -> None:
    [block] = blocks_of_pairs(job_of(nothing), [("a", 1, NOON), ("b", 2, LATER), ("a", 3, LATER)])

    rows = zip(*(block.column(name).to_pylist() for name in (KEY, "values", "times")), strict=True)
    assert sorted(rows) == [("a", [1, 3], [NOON, LATER]), ("b", [2], [LATER])]


def test_event_times_travel_as_a_column_of_rows() -> None:
    rows = pa.record_batch({"key": ["a", "a"], "at": [LATER, NOON], "n": [1, 2]})

    for chunk, options in (
        (Chunk(batch=rows), {"time": "at"}),
        (Chunk(records=[("a", {"n": 1}, LATER), ("a", {"n": 2}, NOON)]), {}),
    ):
        table = arrow_rows(job_of(FORMS["arrow"], **options), chunk)
        assert table.to_pylist() == [
            {"key": "a", "n": 1, "time": LATER},
            {"key": "a", "n": 2, "time": NOON},
        ]


def test_aggregates_are_ordered_by_event_time() -> None:
    running = Running(job_of(ms.last()))

    running.epoch([("a", "late", LATER), ("a", "early", NOON)])

    assert running.state() == {"a": "late"}


@forms
def test_values_without_a_time_beside_values_with_one_are_refused(form: str) -> None:
    chunks = [Chunk(records=[("a", 1, NOON)]), Chunk(records=[("a", 1)])]

    for order in (chunks, chunks[::-1]):
        with pytest.raises(RecordError, match="both"):
            blocks_of(job_of(FORMS[form]), *order)


def test_an_invalid_time_is_reported_with_the_job() -> None:
    with pytest.raises(RecordError, match="map of job 'job' gave 'noon'"):
        blocks_of_pairs(job_of(nothing), [("a", 1, "noon")])


# -- packing and reducing together -----------------------------------------------------------


COUNTS = [job_of(ms.count()), JOBS["combinable"]]


@few
@given(st.lists(st.text("ab", max_size=2)), st.integers(1, 4), st.integers(1, 5))
def test_counting_words_gives_the_counts(words: list[str], tasks: int, partitions: int) -> None:
    for job in COUNTS:
        running = Running(job, tasks=tasks, partitions=partitions)
        outputs = running.epoch([(word, 1) for word in words])

        assert dict(outputs) == running.state() == Counter(words)
