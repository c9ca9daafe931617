from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.checkpoints.parquet_export import export
from millstream.checkpoints.stored_state import StoredState
from millstream.checkpoints.tables import as_text
from millstream.errors import ConfigError
from millstream.flow.functions import arrow
from millstream.state.aggregates import aggregate, mean, sum
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.written import Job, Writer
from tests.work.running import SLOTS, job_of


def put(key: Any, values: list[dict[str, Any]], state: Any) -> None:
    state.update(values[0])


def exported(tmp_path: Path, run: Writer, **options: int) -> pa.Table:
    state = StoredState(run.store, run.lineage, run.epoch, "job")
    ranges = state.ranges
    if options:
        state.ranges = lambda at_once=0: ranges(**options)  # type: ignore[method-assign]
    return pq.read_table(export(state, tmp_path).file)


def table_of(tmp_path: Path, *rows: dict[str, Any], **options: int) -> pa.Table:
    run = Writer(MemoryStore(), {"job": Job(job_of(put))})
    run.commit({"job": [(f"key{at}", row) for at, row in enumerate(rows)]})
    return exported(tmp_path, run, **options).sort_by("key")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "int64"),
        ([1.5, None], "double"),
        ([1, 1.5], "double"),
        (["a", "b"], "string"),
        ([b"a"], "binary"),
        ([True], "bool"),
        ([dt.date(2024, 2, 29)], "date32[day]"),
        ([dt.datetime(2024, 2, 29, 12)], "timestamp[us]"),
        ([dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)], "timestamp[us, tz=UTC]"),
        ([Decimal("1.5"), Decimal("2.5")], "decimal128(2, 1)"),
        ([[1, 2], [], None], "list<element: int64>"),
        ([[], []], "list<element: string>"),
        ([[[1], []], [[2]]], "list<element: list<element: int64>>"),
    ],
    ids=str,
)
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_values_of_one_plain_type_are_a_column_of_it(
    tmp_path: Path, values: list[Any], kind: str, at_once: int
) -> None:
    found = table_of(tmp_path, *({"value": value, "n": 1} for value in values), at_once=at_once)

    assert str(found.schema.field("value").type) == kind
    assert found.column("value").to_pylist() == values


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        [2**70, 1],
        [{"a": 1}],
        [{3, 1}],
        [[1, "a"]],
        [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
        [[1], "a"],
        [{"a": 1}, "a", "b", "c"],
    ],
    ids=str,
)
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_other_values_are_json(tmp_path: Path, values: list[Any], at_once: int) -> None:
    found = table_of(tmp_path, *({"value": value} for value in values), at_once=at_once)

    assert found.schema.field("value").type == pa.string()
    assert found.column("value").to_pylist() == [as_text(value) for value in values]


def test_json_has_the_repr_of_other_types() -> None:
    value = {"a": (1, {2}), 5: float("nan"), "at": dt.date(2024, 1, 1), "c": 1j, ("x", 1): b"b"}

    assert json.loads(as_text(value)) == {
        "a": [1, [2]],
        "5": "nan",
        "at": "2024-01-01",
        "c": "1j",
        "('x', 1)": "b'b'",
    }


def test_an_entry_that_a_key_lacks_is_null_and_one_called_key_makes_way(tmp_path: Path) -> None:
    found = table_of(tmp_path, {"a": 1}, {"b": None, "key": 2})

    assert found.schema.names[0] == "key"
    assert found.to_pylist() == [
        {"key": "key0", "a": 1, "b": None, "key_": None},
        {"key": "key1", "a": None, "b": None, "key_": 2},
    ]
    assert found.schema.field("b").type == pa.string()


def test_integers_that_no_float_equals_are_rounded_beside_floats(tmp_path: Path) -> None:
    found = table_of(tmp_path, {"value": 2**53 + 1}, {"value": 0.5})

    assert found.column("value").to_pylist() == [float(2**53), 0.5]


@pytest.mark.parametrize(
    "keys",
    [[("a", 1), ("b", None)], [1.5, 2.5], [None, "x"], [("a", None)], [None]],
    ids=str,
)
def test_keys_have_their_own_column(tmp_path: Path, keys: list[Any]) -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(put))})
    run.commit({"job": [(key, {"n": 1}) for key in keys]})

    found = exported(tmp_path, run).column("key").to_pylist()

    shown = [tuple(key.values()) if isinstance(key, dict) else key for key in found]
    assert sorted(shown, key=repr) == sorted(keys, key=repr)


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_results_of_aggregates_are_columns(tmp_path: Path, at_once: int) -> None:
    job = Job(job_of(aggregate(total=sum(), avg=mean())), "aggregate")
    job.reducer = "total=sum(), avg=mean()"
    run = Writer(MemoryStore(), {"job": job})
    run.commit({"job": [(at, at) for at in range(50)]})

    found = exported(tmp_path, run, at_once=at_once).sort_by("key")

    assert found.schema.names == ["key", "total", "avg"]
    assert found.to_pylist() == [{"key": at, "total": at, "avg": float(at)} for at in range(50)]


def test_columns_whose_type_differs_from_slot_to_slot_get_one_that_holds_all(
    tmp_path: Path,
) -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(sum()), "aggregate", "value=sum()")})
    run.commit({"job": [(at, None if at % 2 else at) for at in range(SLOTS)]})

    found = exported(tmp_path, run, at_once=1).sort_by("key")

    assert found.column("value").to_pylist() == [None if a % 2 else a for a in range(SLOTS)]


def test_columns_that_only_some_nodes_gave_are_null_elsewhere(tmp_path: Path) -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        named = rows.column("value")[0].as_py()
        return pa.table({"key": rows.column("key"), named: [1] * len(rows)}), None

    job = Job(job_of(arrow(reduce)), "arrow")
    run = Writer(MemoryStore(), {"job": job})
    run.commit({"job": [("a", "left")]})
    job.__post_init__()  # another node, which has nothing of what this one has
    run.commit({"job": [("b", "right")]})

    assert exported(tmp_path, run, at_once=1).sort_by("key").to_pylist() == [
        {"key": "a", "left": 1, "right": None},
        {"key": "b", "left": None, "right": 1},
    ]


def test_an_empty_state_is_an_empty_file(tmp_path: Path) -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(put))})
    run.commit({})

    assert exported(tmp_path, run).to_pylist() == []


def test_an_export_never_replaces_a_file_and_leaves_no_partial_one(tmp_path: Path) -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(put))})
    manifest = run.commit({"job": [("a", {"n": 1}), ("b", {"n": 1})]})
    exported(tmp_path, run)
    state = StoredState(run.store, run.lineage, 0, "job")

    with pytest.raises(ConfigError, match="is there already"):
        export(state, tmp_path)

    run.store.delete([delta.key for delta in manifest.deltas])
    with pytest.raises(Exception, match="missing"):
        export(state, tmp_path / "other")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [tmp_path / "job.parquet"]


def test_a_file_records_its_epoch(tmp_path: Path) -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(put))})
    run.commit({"job": [("a", {"n": 1})]})

    about = exported(tmp_path, run).schema.metadata

    assert (about[b"millstream.job"], about[b"millstream.epoch"]) == (b"job", b"0")
