from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import MillstreamError, Place
from millstream.flow.vertices import JobVertex
from millstream.ring.keys import NAN
from millstream.ring.masks import SlotMask
from millstream.state.aggregates import SumOverflowError
from millstream.state.blocks import KEY, SLOT
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.operators import operator_for
from millstream.work.unit import ReduceOperator, UnitContext
from tests.state.python_values import Basket, same, untimed
from tests.work.running import ALL, SLOTS, Running, blocks_of, blocks_of_pairs, job_of

few = settings(untimed, max_examples=40)
TTL = 10
SECOND = 1_000_000  # times are in microseconds

# -- four ways to keep a count and a sum for each key ----------------------------------------


def fold(key: Any, values: list[int], state: Any) -> Iterator[Any]:
    state["n"] = state.get("n", 0) + len(values)
    state["total"] = state.get("total", 0) + sum(values)
    yield key, state["n"], state["total"]


def _rows(table: pa.Table) -> pa.Table:
    return table.select([KEY, "n", "total"])


def fold_rows(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    new = rows.append_column("n", pa.repeat(1, len(rows))).rename_columns({"value": "total"})
    tables = [_rows(new)] if len(state.column_names) == 1 else [_rows(state), _rows(new)]
    summed = pa.concat_tables(tables).group_by(KEY).aggregate([("n", "sum"), ("total", "sum")])
    kept = summed.rename_columns({"n_sum": "n", "total_sum": "total"})
    return kept, _rows(kept)


PAIR = ms.combinable(
    zero=lambda: [0, 0],
    add=lambda pair, value: [pair[0] + 1, pair[1] + value],
    merge=lambda left, right: [left[0] + right[0], left[1] + right[1]],
    result=tuple,
)

JOBS = {
    "function": job_of(fold),
    "combinable": job_of(PAIR),
    "aggregate": job_of(ms.aggregate(n=ms.count(), total=ms.sum())),
    "arrow": job_of(ms.arrow(fold_rows)),
}
forms = pytest.mark.parametrize("form", JOBS)


def plain(found: Any) -> tuple[int, int]:
    """Count and sum, from the state of any form."""
    return (found["n"], found["total"]) if isinstance(found, dict) else tuple(found)


def plain_output(record: Any) -> tuple[Any, tuple[int, int]]:
    return (record[0], tuple(record[1])) if len(record) == 2 else (record[0], tuple(record[1:]))


KEYS = st.sampled_from([None, "a", "b", "c", "d"]) | st.text(max_size=1)
EPOCH = st.lists(st.tuples(KEYS, st.integers(-9, 9)), max_size=12)


@forms
@few
@given(epochs=st.lists(EPOCH, max_size=5), tasks=st.integers(1, 3), partitions=st.integers(1, 4))
def test_every_form_does_what_a_dictionary_would_over_several_epochs(
    form: str, epochs: list[list[tuple[Any, int]]], tasks: int, partitions: int
) -> None:
    running = Running(JOBS[form], tasks=tasks, partitions=partitions)
    truth: dict[Any, tuple[int, int]] = {}
    for pairs in epochs:
        for key, value in pairs:
            n, total = truth.get(key, (0, 0))
            truth[key] = (n + 1, total + value)

        outputs = dict(map(plain_output, running.epoch(pairs)))

        assert outputs == {key: truth[key] for key, _ in pairs}
        assert {key: plain(found) for key, found in running.state().items()} == truth
        assert running.operator.state.count(ALL) == len(truth)
        by_slot = [running.operator.state.count(np.arange(SLOTS) == slot) for slot in range(SLOTS)]
        assert running.operator.state.counts(ALL).tolist() == by_slot


@forms
@few
@given(
    epochs=st.lists(
        st.tuples(
            st.integers(0, 2 * TTL), st.lists(st.tuples(KEYS, st.integers(-9, 9)), max_size=6)
        ),
        max_size=8,
    )
)
def test_keys_idle_for_longer_than_their_time_to_live_expire(
    form: str, epochs: list[tuple[int, list[tuple[Any, int]]]]
) -> None:
    job = replace(JOBS[form], ttl=timedelta(seconds=TTL))
    running = Running(job)
    truth: dict[Any, tuple[int, int, int]] = {}
    now = 0
    for passed, pairs in epochs:
        now += passed
        truth = {key: kept for key, kept in truth.items() if now - kept[2] <= TTL}
        for key, value in pairs:
            n, total, _ = truth.get(key, (0, 0, 0))
            truth[key] = (n + 1, total + value, now)

        outputs = dict(map(plain_output, running.epoch(pairs, now * SECOND)))

        assert outputs == {key: truth[key][:2] for key, _ in pairs}
        found = {key: plain(state) for key, state in running.state().items()}
        assert found == {key: kept[:2] for key, kept in truth.items()}


def test_a_key_that_returns_after_it_expired_has_none_of_its_old_entries() -> None:
    def reduce(key: str, values: list[str], state: Any) -> None:
        for value in values:
            state[value] = len(state)

    running = Running(job_of(reduce, ttl=timedelta(seconds=TTL)))
    running.epoch([("a", "old"), ("b", "old")])
    running.epoch([("a", "new"), ("b", "newer")], 5 * SECOND)
    running.epoch([("a", "newest")], 20 * SECOND)

    assert running.state() == {"a": {"newest": 0}}


@forms
def test_an_epoch_without_rows_expires_only_the_keys_of_its_slots(form: str) -> None:
    job = replace(JOBS[form], ttl=timedelta(seconds=TTL))
    running = Running(job, partitions=2)
    running.epoch([(str(number), 1) for number in range(40)])
    everything = set(running.state())

    one = running.reduce([], 0, 11 * SECOND)
    running.operator.state.apply(one.fragment)
    half = set(running.state())
    other = running.reduce([], 1, 11 * SECOND)
    running.operator.state.apply(other.fragment)

    assert 0 < len(half) < len(everything)
    assert running.state() == {}


@forms
def test_without_a_time_to_live_nothing_expires(form: str) -> None:
    running = Running(JOBS[form])
    running.epoch([("a", 1)])

    running.epoch([], 10**18)

    assert set(running.state()) == {"a"}


@forms
def test_reducing_changes_nothing_until_it_is_applied(form: str) -> None:
    job = replace(JOBS[form], ttl=timedelta(seconds=TTL))
    running = Running(job, partitions=1)
    running.epoch([("a", 1), ("b", 2)])
    before = copy.deepcopy(running.state())
    blocks = blocks_of_pairs(job, [("a", 5), ("c", 6)])

    first, second = (running.reduce(blocks, 0, 99 * SECOND) for _ in range(2))

    assert running.state() == before
    assert [batch.to_pylist() for batch in first.outputs] == [
        batch.to_pylist() for batch in second.outputs
    ]


@forms
def test_a_look_up_gives_the_committed_state_of_one_key(form: str) -> None:
    running = Running(JOBS[form])
    running.epoch([("a", 1), ("b", 2), ("a", 3)])
    slots = {
        row[KEY]: row[SLOT]
        for block in blocks_of_pairs(JOBS[form], [("a", 0), ("x", 0)])
        for row in block.to_pylist()
    }

    assert plain(running.operator.state.get(slots["a"], "a")) == (2, 4)
    assert running.operator.state.get(slots["x"], "x") is None


@forms
def test_all_kinds_of_keys_are_found_again_in_the_next_epoch(form: str) -> None:
    kinds: list[list[Any]] = [[None, 1, -5], [None, math.nan, 0.0], [True, False]]
    if form != "arrow":  # Arrow itself cannot group by tuples
        kinds.append([None, (None, "a"), (1, "b")])
    for keys in kinds:
        running = Running(JOBS[form])
        for _ in range(2):
            running.epoch([(key, 1) for key in keys])

        state = running.state()

        expected = {NAN if isinstance(key, float) and math.isnan(key) else key for key in keys}
        assert set(state) == expected
        assert {plain(found) for found in state.values()} == {(2, 2)}


@pytest.mark.parametrize("form", JOBS)
def test_blocks_with_keys_of_several_types_are_refused(form: str) -> None:
    job = JOBS[form]
    blocks = [block for key in (1, 1.0) for block in blocks_of_pairs(job, [(key, 1)])]

    with pytest.raises(
        RecordError, match=r"job 'job' gave the key 1.0, which is float, .* are int"
    ):
        Running(job, partitions=1).feed(blocks)


# -- copies of slots on other nodes ----------------------------------------------------------

EPOCHS = st.lists(st.tuples(st.integers(0, 2 * TTL), EPOCH), min_size=1, max_size=6)
UNTIL = 200


def contents(operator: ReduceOperator[Any], job: JobVertex, slots: SlotMask) -> Any:
    """What some slots hold, and what is left of it as time goes by."""
    left = []
    state = {key: plain(found) for key, found in operator.state.items(slots)}
    for now in range(0, UNTIL, 7):
        later = operator_for(job, SLOTS)
        later.state.apply(operator.state.snapshot(range(SLOTS)))
        idle = later.reduce([], UnitContext(range(SLOTS), now * SECOND))
        later.state.apply(idle.fragment)
        left.append({key for key, _ in later.state.items(slots)})
    return state, left, operator.state.count(slots)


def committed_fragments(running: Running, epochs: Sequence[Any]) -> list[list[Any]]:
    """Run some epochs; give the fragments of each."""
    given: list[list[Any]] = []
    for now, pairs in epochs:
        blocks = blocks_of_pairs(running.job, pairs) if pairs else []
        given.append(running.fragments(blocks, now * SECOND))
        for fragment in given[-1]:
            running.operator.state.apply(fragment)
    return given


@forms
@few
@given(epochs=EPOCHS, data=st.data())
def test_a_copy_that_gets_deltas_merged_deltas_or_a_snapshot_holds_the_same(
    form: str, epochs: list[Any], data: st.DataObject
) -> None:
    job = replace(JOBS[form], ttl=timedelta(seconds=TTL))
    running = Running(job)
    original = running.operator
    single, merged, late = (operator_for(job, SLOTS) for _ in range(3))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS)))
    at = data.draw(st.integers(0, len(epochs)))

    times = accumulate(passed for passed, _ in epochs)
    timed = [(now, pairs) for now, (_, pairs) in zip(times, epochs, strict=True)]
    before = committed_fragments(running, timed[:at])
    snapshot = original.state.encode(original.state.snapshot(range(SLOTS)))
    after = committed_fragments(running, timed[at:])
    deltas = [[original.state.encode(f) for f in fragments] for fragments in before + after]
    for fragments in deltas:
        for delta in fragments:
            single.state.apply(single.state.decode(delta), mask)
    for unit in zip(*deltas, strict=True):  # all epochs of a unit in one
        merged.state.apply(merged.state.merge([merged.state.decode(delta) for delta in unit]), mask)
    late.state.apply(late.state.decode(snapshot), mask)
    for fragments in after:
        for fragment in fragments:
            late.state.apply(fragment, mask)

    expected = contents(original, job, mask)
    for copied in (single, merged, late):
        assert contents(copied, job, mask) == expected
        assert copied.state.count(~mask) == 0


@forms
def test_dropped_slots_are_empty_and_the_others_stay_unchanged(form: str) -> None:
    running = Running(JOBS[form])
    running.epoch([(str(number), 1) for number in range(40)])
    half = np.arange(SLOTS) < SLOTS // 2
    gone, kept = (dict(running.operator.state.items(mask)) for mask in (half, ~half))

    running.operator.state.drop(half)

    assert gone and kept
    assert running.state() == kept
    assert running.operator.state.count(half) == 0 and running.operator.state.count(ALL) == len(
        kept
    )
    running.epoch([(key, 5) for key in gone])
    assert {
        key: plain(found) for key, found in running.operator.state.items(half)
    } == dict.fromkeys(gone, (1, 5))


# -- functions -------------------------------------------------------------------------------


def test_a_function_may_return_nothing_one_record_a_list_or_yield() -> None:
    def reduce(key: str, values: list[int], state: Any) -> Any:
        return {"none": None, "one": (key, 1), "list": [(key, 1), (key, 2)], "empty": []}[key]

    outputs = Running(job_of(reduce)).epoch([(key, 0) for key in ("none", "one", "list", "empty")])

    assert sorted(outputs) == [("list", 1), ("list", 2), ("one", 1)]


def test_outputs_of_any_kind_come_out_as_they_were() -> None:
    def reduce(key: str, values: list[Any], state: Any) -> Iterator[Any]:
        yield Basket([key])
        yield {"k": (1, True, 1.0)}

    found = Running(job_of(reduce)).epoch([("a", 0)])

    assert same(found, [Basket(["a"]), {"k": (1, True, 1.0)}])


def failing(key: str, values: list[int], state: Any) -> Iterator[Any]:
    state["seen"] = values
    if key == "bad":
        raise ValueError("no good")
    yield key, 1


def test_an_error_names_function_file_line_and_key_and_leaves_the_state_alone() -> None:
    running = Running(job_of(failing), partitions=1)
    running.epoch([("a", 1), ("b", 1)])
    before = copy.deepcopy(running.state())

    with pytest.raises(UserFunctionError) as caught:
        running.epoch([("a", 2), ("bad", 2), ("b", 2)])

    error = caught.value
    assert (error.function, error.key) == ("failing", "'bad' (str)")
    assert error.place == Place(__file__, failing.__code__.co_firstlineno + 3)
    assert "ValueError: no good" in str(error) and "reducer of job 'job'" in str(error)
    assert running.state() == before


def test_state_that_cannot_be_pickled_is_the_users_error() -> None:
    def reduce(key: str, values: list[int], state: Any) -> None:
        state["lock"] = threading.Lock()

    with pytest.raises(UserFunctionError) as caught:
        Running(job_of(reduce)).epoch([("a", 1)])

    assert caught.value.key == "'a' (str)"


def test_mutation_without_writing_back_is_kept_from_epoch_to_epoch() -> None:
    def reduce(key: str, values: list[int], state: Any) -> None:
        if "seen" in state:
            state["seen"].extend(values)
        else:
            state["seen"] = values

    running = Running(job_of(reduce), tasks=1)
    for value in (1, 2, 3):
        running.epoch([("a", value)])

    assert running.state() == {"a": {"seen": [1, 2, 3]}}


def test_an_output_of_a_wrong_type_is_reported_with_its_key() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])

    def reduce(key: str, values: list[Any], state: Any) -> Iterator[Any]:
        yield key, 1
        yield key, values[0]

    with pytest.raises(RecordError) as caught:
        Running(job_of(reduce, output=schema)).epoch([("a", 1), ("b", 1.5), ("c", 2)])

    assert "for key 'b' (str): 1.5 (float) does not fit column 'value' of type int64" in str(
        caught.value
    )


def test_a_reducer_that_clears_its_state_forgets_the_key() -> None:
    def reduce(key: str, values: list[str], state: Any) -> None:
        if "end" in values:
            state.clear()
        else:
            state["open"] = True

    running = Running(job_of(reduce))
    running.epoch([("a", "x"), ("b", "x")])
    running.epoch([("a", "end")])

    assert running.state() == {"b": {"open": True}}


# -- the user's combinable -------------------------------------------------------------------


def test_merge_and_result_may_change_what_they_are_given() -> None:
    def merge(left: list[int], right: list[int]) -> list[int]:
        left.extend(right)
        return left

    def pop(accumulator: list[int]) -> int:
        return accumulator.pop()

    def add(accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    bag = ms.combinable(zero=list, add=add, merge=merge, result=pop)
    running = Running(job_of(bag), tasks=1)
    running.epoch([("a", 1), ("a", 2), ("a", 3)])
    assert running.state() == running.state() == {"a": 2}
    blocks = blocks_of_pairs(running.job, [("a", 4)])

    for at in range(3):
        running.reduce(blocks, at, 0)

    assert running.state() == {"a": 2}


@pytest.mark.parametrize("broken", ["merge", "result"])
def test_an_error_names_the_part_of_a_combinable_that_raised(broken: str) -> None:
    def fails(*arguments: Any) -> Any:
        raise ValueError("no good")

    parts: dict[str, Any] = {
        "zero": int,
        "add": lambda total, value: total + value,
        "merge": lambda left, right: left + right,
        "result": lambda total: total,
    }
    parts[broken] = fails
    running = Running(job_of(ms.combinable(**parts)), partitions=1)

    with pytest.raises(UserFunctionError) as caught:
        running.epoch([("a", 1), ("a", 2)])

    assert caught.value.function.endswith("fails")
    assert caught.value.key == "'a' (str)"
    assert running.state() == {}


# -- aggregates ------------------------------------------------------------------------------


def test_a_single_aggregate_gives_pairs_and_several_give_rows() -> None:
    [pair] = Running(job_of(ms.sum())).epoch([("a", 1), ("a", 2)])
    [row] = Running(JOBS["aggregate"]).epoch([("a", 1), ("a", 2)])

    assert pair == ("a", 3)
    assert (row.key, row.n, row.total) == ("a", 2, 3)


@pytest.mark.parametrize(
    "later", [[("b", 1.5)], [("a", 1.5), ("b", 1)]], ids=["only new keys", "known keys"]
)
def test_floats_that_come_after_integers_are_not_cut_off(later: list[tuple[str, Any]]) -> None:
    running = Running(job_of(ms.sum()))
    running.epoch([("a", 1)])

    outputs = dict(running.epoch(later))

    truth = {"a": 1} | {key: 1 + value if key == "a" else value for key, value in later}
    assert running.state() == truth
    assert outputs == {key: truth[key] for key, _ in later}


def test_integers_and_floats_in_one_epoch_are_kept_exactly_wherever_they_land() -> None:
    running = Running(job_of(ms.sum()), tasks=1, partitions=16)
    pairs = [(str(number), number if number % 2 else number + 0.5) for number in range(20)]

    running.feed([block for pair in pairs for block in blocks_of_pairs(running.job, [pair])])

    assert running.state() == dict(pairs)


@pytest.mark.parametrize("key", ["a", "b"])
def test_values_of_another_type_than_before_are_refused(key: str) -> None:
    running = Running(job_of(ms.max()), partitions=1)
    running.epoch([("a", 1)])

    with pytest.raises(RecordError, match="string"):
        running.epoch([(key, "x")])

    assert running.state() == {"a": 1}


def test_lists_of_equal_length_survive_in_the_state() -> None:
    running = Running(job_of(ms.top_k(2)))
    for value in (1, 2, 3):
        running.epoch([("a", value), ("b", -value)])

    assert running.state() == {"a": [3, 2], "b": [-1, -2]}


def test_the_first_value_stays_the_first_over_epochs() -> None:
    running = Running(job_of(ms.aggregate(first=ms.first(), last=ms.last())), tasks=1)
    for value in ("x", "y", "z"):
        running.epoch([("a", value), ("a", value * 2)])

    assert running.state() == {"a": {"first": "x", "last": "zz"}}


# -- Arrow reducers --------------------------------------------------------------------------

Reduce = Callable[[pa.Table, pa.Table], Any]


def arrow_job(function: Reduce, **options: Any) -> JobVertex:
    return job_of(ms.arrow(function), **options)


def test_an_arrow_reducer_sees_the_rows_and_the_state_of_their_keys_only() -> None:
    seen: list[tuple[Any, Any]] = []

    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        seen.append((rows.sort_by(KEY).to_pylist(), state.sort_by(KEY).to_pylist()))
        return fold_rows(rows, state)[0], None

    running = Running(arrow_job(reduce), partitions=1, tasks=1)
    running.epoch([("a", 1), ("b", 2)])
    running.epoch([("b", 3), ("c", 4)])

    assert seen == [
        ([{"key": "a", "value": 1}, {"key": "b", "value": 2}], []),
        (
            [{"key": "b", "value": 3}, {"key": "c", "value": 4}],
            [{"key": "b", "n": 1, "total": 2}],
        ),
    ]


def test_a_key_without_a_state_row_is_forgotten() -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.filter(pc.greater(rows["value"], 0)), None

    running = Running(arrow_job(reduce))
    running.epoch([("a", 1), ("b", 1)])
    running.epoch([("a", -1)])

    assert running.state() == {"b": {"value": 1}}


def test_a_key_that_returns_after_it_expired_without_a_state_row_is_forgotten_too() -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.filter(pc.greater(rows["value"], 0)), None

    running = Running(arrow_job(reduce, ttl=timedelta(seconds=TTL)))
    running.epoch([("a", 1)])
    running.epoch([("a", -1)], 100 * SECOND)

    assert running.state() == {}


def test_keys_alone_can_be_the_state() -> None:
    def distinct(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys = rows.group_by(KEY).aggregate([])
        new = keys.filter(pc.invert(pc.is_in(keys[KEY], state[KEY])))
        return keys, new

    running = Running(arrow_job(distinct))
    assert sorted(running.epoch([("a", 1), ("b", 1), ("a", 1)])) == ["a", "b"]
    assert running.epoch([("b", 1), ("c", 1)]) == ["c"]

    assert running.state() == {"a": {}, "b": {}, "c": {}}
    assert running.operator.state.get(0, "a") == {}
    copied = operator_for(running.job, SLOTS)
    copied.state.apply(
        copied.state.decode(copied.state.encode(running.operator.state.snapshot(range(SLOTS))))
    )
    assert dict(copied.state.items(ALL)) == running.state()


def _with_outputs(outputs: Any, rows: pa.Table, state: pa.Table) -> tuple[pa.Table, Any]:
    return rows, outputs


def test_outputs_may_be_none_empty_a_table_or_a_batch() -> None:
    for outputs, expected in (
        (None, 0),
        (pa.table({"x": pa.array([], pa.int64())}), 0),
        (pa.table({"x": [1, 2]}), 2),
        (pa.record_batch({"x": [1, 2]}), 2),
    ):
        running = Running(arrow_job(partial(_with_outputs, outputs)), partitions=1)
        assert len(running.epoch([("a", 1)])) == expected


@pytest.mark.parametrize(
    ("reduce", "problem"),
    [
        (lambda rows, state: rows, "returned"),
        (lambda rows, state: None, "returned None"),
        (lambda rows, state: (rows, rows, rows), "returned"),
        (lambda rows, state: (None, None), "without a column 'key'"),
        (lambda rows, state: (rows.drop_columns(["key"]), None), "without a column 'key'"),
        (lambda rows, state: (rows, [1]), "returned the outputs"),
        (lambda rows, state: (rows, {"x": [1]}), "returned the outputs"),
        (lambda rows, state: (pa.concat_tables([rows, rows]), None), "a key twice"),
        (lambda rows, state: (pa.table({"key": ["z"]}), None), "has no new rows"),
        (lambda rows, state: (pa.table({"key": [1]}), None), "keys of type int64"),
        (lambda rows, state: (pa.table({"key": [[1]]}), None), "keys of type list"),
    ],
)
def test_what_an_arrow_reducer_returns_is_checked(reduce: Reduce, problem: str) -> None:
    running = Running(arrow_job(reduce), partitions=1)

    with pytest.raises(RecordError) as caught:
        running.epoch([("a", 1)])

    assert problem in caught.value.what
    assert caught.value.place == Place(__file__, reduce.__code__.co_firstlineno)
    assert running.state() == {}


def test_keys_that_are_equal_but_of_another_type_are_refused() -> None:
    def as_floats(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.set_column(0, KEY, rows[KEY].cast(pa.float64())), None

    with pytest.raises(RecordError, match="keys of type double, but they are int64"):
        Running(arrow_job(as_floats), partitions=1).epoch([(1, 1)])


def test_state_columns_may_come_in_another_order_but_not_with_other_names_or_types() -> None:
    names: list[list[str]] = [["key", "a", "b"], ["key", "b", "a"]]

    def ordered(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.select(names[len(state)]), None

    running = Running(arrow_job(ordered), partitions=1)
    running.epoch([("k", {"a": 1, "b": 2})])
    running.epoch([("k", {"a": 3, "b": 4})])
    assert running.state() == {"k": {"a": 3, "b": 4}}

    for wrong in ({"a": 1, "c": 2}, {"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "b": 2.5}):
        running = Running(arrow_job(lambda rows, state: (rows, None)), partitions=1)
        running.epoch([("k", {"a": 1, "b": 2})])
        with pytest.raises(RecordError, match="but they were a int64, b int64"):
            running.epoch([("j", wrong)])
        assert running.state() == {"k": {"a": 1, "b": 2}}


def test_an_error_in_an_arrow_reducer_names_its_line() -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> Any:
        return rows["nothing"]

    with pytest.raises(UserFunctionError) as caught:
        Running(arrow_job(reduce)).epoch([("a", 1)])

    assert caught.value.place == Place(__file__, reduce.__code__.co_firstlineno + 1)


def test_rows_of_frames_and_of_pairs_go_into_one_reducer() -> None:
    job = JOBS["arrow"]
    frame = pa.record_batch({"key": ["a", "b"], "value": [1, 2]})
    running = Running(job)

    running.feed(blocks_of(job, Chunk(batch=frame), Chunk(records=[("a", 5)])))

    assert running.state() == {"a": {"n": 2, "total": 6}, "b": {"n": 1, "total": 2}}


HUGE = 2**62


@pytest.mark.parametrize("key", ["k", ("k", 1)], ids=repr)
def test_a_sum_that_does_not_fit_names_job_and_key_on_the_map_side_and_on_the_node(
    key: Any,
) -> None:
    job = job_of(ms.sum())
    others = [("z", 1)] if key == "k" else [(("z", 2), 1)]

    with pytest.raises(SumOverflowError) as caught:
        blocks_of_pairs(job, [*others, (key, HUGE), (key, HUGE)])
    assert (caught.value.job, caught.value.key) == ("job", repr(key))

    running = Running(job, partitions=1)
    running.feed(blocks_of_pairs(job, [*others, (key, HUGE)]))
    with pytest.raises(SumOverflowError, match=r"job 'job': key .*does not fit int64") as caught:
        running.feed(blocks_of_pairs(job, [*others, (key, HUGE)]))
    assert caught.value.key == repr(key)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("reduce", [ms.sum(), ms.mean(), ms.top_k(2)], ids=repr)
def test_values_that_a_built_in_cannot_reduce_name_the_job(reduce: Any) -> None:
    wrong = [("k", "text")] if reduce != ms.top_k(2) else [("k", [1])]

    with pytest.raises(MillstreamError, match="job 'job'"):
        blocks_of_pairs(job_of(reduce), wrong)
