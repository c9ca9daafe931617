"""Several aggregates side by side, the arguments they accept, and the names they export."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.state import aggregates as agg
from millstream.state.aggregates import AggregateSet, UnsupportedValueError

SCHEMA = pa.schema([("temp", pa.float32()), ("value", pa.int32())])
VALUES = {
    "temp": pa.array([1.0, 2.0, None, 6.0], pa.float32()),
    "value": pa.array([4, None, 5, 6], pa.int32()),
}
GROUPS = np.array([0, 0, 1, 0])


def everything() -> AggregateSet:
    return agg.aggregate(
        n=agg.count(),
        known=agg.count("temp"),
        total=agg.sum(),
        avg=agg.mean("temp"),
        low=agg.min("temp"),
        high=agg.max("temp"),
        best=agg.top_k(2),
        kinds=agg.distinct(),
        about=agg.approx_distinct(),
        start=agg.first(),
        end=agg.last("temp"),
    )


def test_a_set_gives_one_result_column_for_each_name() -> None:
    results = everything().result(everything().fold(VALUES, None, GROUPS, 2))

    assert results.schema.names == list(everything().names)
    assert results.to_pylist() == [
        {
            "n": 3, "known": 3, "total": 10, "avg": 3.0, "low": 1.0,
            "high": 6.0, "best": [6, 4], "kinds": 2, "about": 2, "start": 4, "end": 6.0,
        },
        {
            "n": 1, "known": 0, "total": 5, "avg": None, "low": None,
            "high": None, "best": [5], "kinds": 1, "about": 1, "start": 5, "end": None,
        },
    ]  # fmt: skip


def test_accumulator_columns_are_prefixed_with_the_name_of_their_result() -> None:
    two = agg.aggregate(n=agg.count(), avg=agg.mean("temp"))

    assert two.fold(VALUES, None, GROUPS, 2).schema.names == ["n.count", "avg.sum", "avg.count"]


def test_folds_and_merges_have_the_declared_schema() -> None:
    folded = everything().fold(VALUES, None, GROUPS, 2)
    merged = everything().merge(folded, np.zeros(2, np.int64), 1)

    types = {name: column.type for name, column in VALUES.items()}
    declared = [
        item.result_type(types.get(item.column or "value") if item.needs_values else None)
        for _, item in everything().items
    ]
    assert merged.schema == folded.schema
    assert everything().result(merged).schema.types == declared


def test_a_merge_in_two_steps_gives_the_results_of_one_fold() -> None:
    def part(start: int, stop: int) -> pa.RecordBatch:
        values = {name: column[start:stop] for name, column in VALUES.items()}
        return everything().fold(values, None, np.arange(stop - start), stop - start)

    batch = pa.concat_batches([part(0, 1), part(1, 3), part(3, 4)])
    merged = everything().merge(batch, GROUPS, 2)

    whole = everything().fold(VALUES, None, GROUPS, 2)
    assert everything().result(merged).equals(everything().result(whole))


def test_columns_of_others_in_a_batch_are_ignored() -> None:
    one = agg.aggregate(n=agg.count())
    batch = one.fold({}, None, GROUPS, 2).append_column("key", pa.array(["a", "b"]))

    assert one.merge(batch, np.zeros(2, np.int64), 1).to_pydict() == {"n.count": [4]}
    assert one.result(batch).to_pydict() == {"n": [3, 1]}


def test_names_that_share_a_beginning_are_kept_apart() -> None:
    two = agg.aggregate(n=agg.count(), n2=agg.sum())
    folded = two.fold(VALUES, None, GROUPS, 2)

    assert two.merge(folded, np.arange(2), 2).equals(folded)


def test_a_set_lists_each_column_that_it_reads_once() -> None:
    assert everything().columns == ("temp", "value")
    assert agg.aggregate(n=agg.count()).columns == ()


def test_a_single_aggregate_becomes_a_set_called_value() -> None:
    assert agg.as_set(agg.sum("x")).items == (("value", agg.sum("x")),)
    assert agg.as_set(everything()) == everything()


def test_a_set_is_hashable_and_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(everything()))

    assert copy == everything()
    assert hash(copy) == hash(everything())


def test_a_missing_column_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"reads column 'speed'.*temp, value"):
        agg.aggregate(v=agg.mean("speed")).fold(VALUES, None, GROUPS, 2)


@pytest.mark.parametrize("make", [agg.sum, agg.mean])
def test_adding_strings_names_the_aggregate_the_type_and_what_is_allowed(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(UnsupportedValueError, match=f"{make.__name__}.*string.*integer, float"):
        make().accumulators(pa.string())


@pytest.mark.parametrize(
    "aggregate",
    [agg.min(), agg.max(), agg.top_k(1), agg.distinct(), agg.approx_distinct()],
    ids=repr,
)
@pytest.mark.parametrize("type", [pa.list_(pa.int64()), pa.null(), pa.month_day_nano_interval()])
def test_values_without_an_order_are_refused(aggregate: Any, type: pa.DataType) -> None:
    with pytest.raises(UnsupportedValueError):
        aggregate.accumulators(type)


def test_an_unsupported_value_is_a_config_error_and_survives_pickling() -> None:
    assert issubclass(UnsupportedValueError, ConfigError)

    error = pickle.loads(pickle.dumps(UnsupportedValueError("sum", "string", ("integer", "float"))))

    assert (error.aggregate, error.type, error.allowed) == ("sum", "string", ("integer", "float"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.top_k(0), "k must be an integer of at least 1, got 0"),
        (lambda: agg.top_k(True), "k must be"),
        (lambda: agg.top_k(2, largest="yes"), "largest must be True or False"),  # type: ignore[arg-type]
        (
            lambda: agg.approx_distinct(precision=6),
            "precision must be an integer from 7 to 18, got 6",
        ),
        (lambda: agg.approx_distinct(precision=19), "precision must be"),
        (lambda: agg.sum(""), "column must be"),
        (lambda: agg.sum(3), "column must be"),  # type: ignore[arg-type]
        (lambda: agg.aggregate(), "at least one"),
        (lambda: agg.aggregate(n=agg.count), "n must be an aggregate"),  # type: ignore[arg-type]
        (lambda: agg.aggregate(**{"a.b": agg.count()}), "identifier, got 'a.b'"),
        (lambda: AggregateSet((("a", agg.count()), ("a", agg.sum()))), "must differ"),
        (lambda: agg.as_set(len), "value must be an aggregate"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_every_exported_name_exists() -> None:
    assert all(hasattr(agg, name) for name in agg.__all__)


def test_values_that_are_all_null_leave_the_type_open() -> None:
    reducer = agg.aggregate(total=agg.sum("x"), low=agg.min("x"), n=agg.count())

    unknown = reducer.fold({"x": pa.nulls(3)}, None, np.array([0, 0, 1]), 2)
    again = reducer.merge(unknown, np.array([0, 1]), 2)

    assert again.column("total.sum").type == again.column("low.min").type == pa.null()
    assert reducer.result(again).to_pylist() == [
        {"total": None, "low": None, "n": 2},
        {"total": None, "low": None, "n": 1},
    ]
