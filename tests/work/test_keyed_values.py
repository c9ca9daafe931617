from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.functions import arrow
from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys, encode_keys
from millstream.state.records import encode_records
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import column_values, encode_times, group, keyed, pair_columns
from tests.ring.key_strategies import columns
from tests.state.python_values import Basket, Point, same, untimed
from tests.work.running import job_of

UTC = pa.timestamp("us", "UTC")
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
FRAME = pa.record_batch({"id": [1, 2], "word": ["a", "b"], "n": [3, 4]})


def nothing(key: Any, values: list[Any], state: Any) -> None:
    return None


def job(**options: Any) -> JobVertex:
    return job_of(nothing, **options)


def one(job: JobVertex, chunk: Chunk) -> Pairs | KeyedBatch:
    [found] = keyed(job, chunk)
    return found


def pairs(job: JobVertex, chunk: Chunk) -> list[Any]:
    found = one(job, chunk)
    assert isinstance(found, Pairs)
    return list(found.items)


def batch(job: JobVertex, chunk: Chunk) -> KeyedBatch:
    found = one(job, chunk)
    assert isinstance(found, KeyedBatch)
    return found


# -- records ---------------------------------------------------------------------------------


def test_a_map_gives_pairs() -> None:
    def words(line: str) -> list[tuple[str, int]]:
        return [(word, 1) for word in line.split()]

    found = one(job(map=words), Chunk(records=["a b", "", "a"]))

    assert found == Pairs([("a", 1), ("b", 1), ("a", 1)], timed=False)


def test_triples_carry_event_times() -> None:
    assert one(job(), Chunk(records=[("a", 1, NOON)])) == Pairs([("a", 1, NOON)], timed=True)


def test_a_key_function_chooses_the_key_of_each_record() -> None:
    assert pairs(job(key=len), Chunk(records=["a", "bb"])) == [(1, "a"), (2, "bb")]


def test_a_stop_iteration_that_escapes_is_an_error_and_not_the_end() -> None:
    def first(record: Any) -> Any:
        return next(iter(()))

    for broken in (job(map=first), job(key=first)):
        with pytest.raises(UserFunctionError, match="StopIteration"):
            list(keyed(broken, Chunk(records=[1, 2])))


@pytest.mark.parametrize("wrong", [1, "ab", ("a",), ("a", 1, 2, 3), ["a", 1], Point(1, 2.0)])
def test_what_is_not_a_pair_is_named(wrong: Any) -> None:
    with pytest.raises(RecordError) as caught:
        list(keyed(job(), Chunk(records=[("a", 1), wrong])))

    assert repr(wrong) in caught.value.what
    assert caught.value.role == "input of job 'job'"


def test_pairs_beside_triples_are_refused() -> None:
    with pytest.raises(RecordError, match="both"):
        list(keyed(job(), Chunk(records=[("a", 1), ("a", 1, NOON)])))


def test_pairs_with_objects_stay_python_on_the_way_from_job_to_job() -> None:
    records = [("a", (1, 2)), ("b", Basket(["egg"])), ("c", {1, 2})]

    found = pairs(job(), Chunk(batch=encode_records(records)))

    assert same(found, records)


def test_pairs_of_plain_types_stay_arrow_on_the_way_from_job_to_job() -> None:
    found = batch(job(), Chunk(batch=encode_records([("a", 1), ("b", None)])))

    assert decode_keys(found.keys) == ["a", "b"]
    assert column_values(found) == [1, None]


def test_which_way_pairs_go_does_not_depend_on_who_read_them_before() -> None:
    chunk = Chunk(records=[("a", 1)])

    chunk.batch()

    assert pairs(job(), chunk) == [("a", 1)]


# -- columns ---------------------------------------------------------------------------------


def test_an_arrow_map_is_keyed_by_its_column_key() -> None:
    def rename(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": rows.column("word"), "value": rows.column("n")})

    found = batch(job(map=arrow(rename)), Chunk(batch=FRAME))

    assert decode_keys(found.keys) == ["a", "b"]
    assert list(found.values) == ["value"]


def test_columns_of_a_frame_are_the_key_and_the_rows_are_the_values() -> None:
    found = batch(job(key=("word", "id")), Chunk(batch=FRAME))

    assert decode_keys(found.keys) == [("a", 1), ("b", 2)]
    assert [row.n for row in column_values(found)] == [3, 4]
    assert [row["word"] for row in column_values(found)] == ["a", "b"]


def test_a_missing_column_is_named_with_those_there_are() -> None:
    for broken in (job(key="user"), job(key="word", time="user")):
        with pytest.raises(RecordError, match=r"no column 'user' \(it has id, word, n\)"):
            list(keyed(broken, Chunk(batch=FRAME)))


def test_a_key_column_of_another_type_than_the_jobs_is_refused() -> None:
    with pytest.raises(RecordError, match="keys of type string, but the job's keys are int64"):
        list(keyed(job(key="word", key_type=pa.int64()), Chunk(batch=FRAME)))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()], ids=str)
def test_a_key_type_may_be_declared_in_any_width(kind: pa.DataType) -> None:
    found = batch(job(key="id", key_type=kind), Chunk(batch=FRAME))

    assert found.keys.type == pa.int64()


def test_keys_that_are_all_none_fit_any_declared_type() -> None:
    nulls = pa.record_batch({"key": pa.nulls(2), "other": pa.nulls(2), "n": [1, 2]})
    pair = pa.struct([("_1", pa.int64()), ("_2", pa.string())])

    assert decode_keys(batch(job(key_type=pa.int64()), Chunk(batch=nulls)).keys) == [None, None]
    found = batch(job(key=("key", "other"), key_type=pair), Chunk(batch=nulls))
    assert decode_keys(found.keys) == [(None, None)] * 2


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    rows = pa.record_batch({"key": [[1], [2]]})

    with pytest.raises(RecordError, match="cast the key column"):
        list(keyed(job(), Chunk(batch=rows)))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOON, None], UTC),
        pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("ns")),
        pa.array([NOON.timestamp(), None], pa.float64()),
        pa.array([int(NOON.timestamp()), None], pa.int64()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_time_column_is_read_as_utc_and_numbers_as_seconds(column: pa.Array) -> None:
    rows = pa.record_batch({"key": ["a", "b"], "at": column, "n": [1, 2]})

    found = batch(job(time="at"), Chunk(batch=rows))

    assert found.times is not None and found.times.type == UTC
    assert found.times.to_pylist() == [NOON, None]
    assert list(found.values) == ["n"]


def test_a_time_column_is_a_value_where_it_is_aggregated() -> None:
    rows = Chunk(batch=pa.record_batch({"user": ["a"], "at": [NOON], "n": [1]}))

    for reduce in (ms.aggregate(n=ms.count(), last=ms.max("at")), ms.max("at")):
        assert list(batch(job_of(reduce, key="user", time="at"), rows).values) == [
            "user",
            "at",
            "n",
        ]
    other = batch(job_of(ms.max("n"), key="user", time="at"), rows)
    assert list(other.values) == ["user", "n"]


def test_a_time_column_of_another_type_is_refused() -> None:
    rows = pa.record_batch({"key": ["a"], "at": ["yesterday"]})

    with pytest.raises(RecordError, match="a column 'at' of type string for a timestamp"):
        list(keyed(job(time="at"), Chunk(batch=rows)))


@pytest.mark.parametrize(
    "times",
    [
        [NOON, None],
        [NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), None],
        [NOON.replace(tzinfo=None), None],
        [int(NOON.timestamp()), None],
        [NOON.timestamp(), None],
        [np.float64(NOON.timestamp()), None],
        [np.datetime64(NOON.replace(tzinfo=None)), np.datetime64("NaT")],
        [pd.Timestamp(NOON), pd.NaT],
    ],
    ids=repr,
)
def test_event_times_are_instants_in_utc(times: list[Any]) -> None:
    assert encode_times(job(), times).to_pylist() == [NOON, None]


EDGES = [dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
EAST, WEST = (dt.timezone(dt.timedelta(hours=hours)) for hours in (5, -5))


@pytest.mark.parametrize(
    "times",
    [
        [float("-inf"), float("inf"), None],
        [-1e14, 1e14, float("nan")],
        [-1.7e18, 1.7e18, None],
        [-1e305, 10**300, None],
        [EDGES[0].replace(tzinfo=EAST), EDGES[1].replace(tzinfo=WEST), None],
    ],
    ids=repr,
)
def test_times_beyond_the_calendar_are_at_its_edge(times: list[Any]) -> None:
    assert encode_times(job(), times).to_pylist() == [*EDGES, None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([float("-inf"), float("inf"), None]),
        pa.array([-(2**62), 2**62, None]),
        pa.array([-(2**60), 2**60, None], UTC),
        pa.array([-(2**63), 2**63 - 1, None], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([-(2**60), 2**60, None], pa.timestamp("ms")),
        pa.array([-(2**50), 2**50, None], pa.timestamp("s", "UTC")),
        pa.array([-(2**31), 2**31 - 1, None], pa.int32()).view(pa.date32()),
        pa.array([-(2**60), 2**60, None], pa.int64()).view(pa.date64()),
    ],
    ids=lambda column: str(column.type),
)
def test_times_of_a_column_beyond_the_calendar_are_at_its_edge(column: pa.Array) -> None:
    rows = pa.record_batch({"key": ["a", "b", "c"], "at": column})

    found = batch(job(time="at"), Chunk(batch=rows)).times

    assert found is not None and found.type == UTC
    assert found.to_pylist() == [*EDGES, None]


@pytest.mark.parametrize(
    "times", [["noon"], [NOON, 3], [True], [dt.date(2024, 5, 1)], [10**400]], ids=repr
)
def test_what_is_no_timestamp_is_refused(times: list[Any]) -> None:
    with pytest.raises(RecordError, match="for a timestamp"):
        encode_times(job(), times)


# -- pairs as columns ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], {"value": [1, 2]}),
        ([1, 2.5], {"value": [1.0, 2.5]}),
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4}], {"a": [1, 3], "b": [2, 4]}),
        ([(1, 2), (3, 4)], {"_1": [1, 3], "_2": [2, 4]}),
        ([(1, [2]), (3, [4])], {"_1": [1, 3], "_2": [[2], [4]]}),
        ([(1, 2, 3), (4, 5, 6)], {"_1": [1, 4], "_2": [2, 5], "_3": [3, 6]}),
        ([Point(1, 2.0), Point(3, 4.0)], {"x": [1, 3], "y": [2.0, 4.0]}),
    ],
    ids=repr,
)
def test_values_are_spelled_out_as_columns(values: list[Any], expected: dict[str, Any]) -> None:
    found = pair_columns(job(), Pairs([("k", value) for value in values], False))

    assert {name: column.to_pylist() for name, column in found.values.items()} == expected


def test_values_that_arrow_cannot_carry_are_named() -> None:
    with pytest.raises(RecordError, match="Arrow cannot carry"):
        pair_columns(job(), Pairs([("k", 1), ("k", "x")], False))


# -- grouping --------------------------------------------------------------------------------


@untimed
@given(columns)
def test_groups_number_the_distinct_keys(column: tuple[pa.DataType, list[object]]) -> None:
    type, keys = column
    array = encode_keys([*keys, *keys], type)

    groups, distinct = group(array)

    found = decode_keys(distinct)
    assert len(set(found)) == len(found)
    assert [found[at] for at in groups.tolist()] == decode_keys(array)
    assert sorted(set(groups.tolist())) == list(range(len(found)))


@untimed
@given(st.lists(st.sampled_from([(), None])))
def test_empty_tuples_are_keys_too(keys: list[object]) -> None:
    groups, distinct = group(encode_keys(keys, pa.struct([])))

    found = decode_keys(distinct)
    assert [found[at] for at in np.asarray(groups).tolist()] == keys
