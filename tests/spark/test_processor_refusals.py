# ruff: noqa: N802, N803
"""What cannot be had of Spark's processors is refused while a workflow is built; no JVM runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

import millstream as ms
from millstream.flow.labels import reduce_text
from millstream.flow.reducers import reducer_of
from tests.work.running import Running


class Counting(StatefulProcessor):
    """Counts rows; does what it is told in ``init``."""

    def __init__(self, init: Any = None) -> None:
        self.held = init

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")
        if callable(self.held):
            self.held(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        known = self.n.get()
        self.n.update(((known[0] if known else 0) + len(list(rows)),))
        yield Row(n=self.n.get()[0], id=key[0])

    def close(self) -> None:
        pass


OUTPUT = "id string, n bigint"


def group(key: Any, frames: Any, state: Any) -> Any: ...


def with_ttl(handle: Any) -> None:
    handle.getValueState("t", "n int", 10)


def twice(handle: Any) -> None:
    handle.getValueState("n", "n int")


def unknown_type(handle: Any) -> None:
    handle.getValueState("t", "n interval")


def broken(handle: Any) -> None:
    raise OSError("no model")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"processor": 7}, "got 7 .*StatefulProcessor"),
        ({"processor": Counting}, "pass an instance"),
        ({"processor": Counting(threading.Lock())}, "cannot be pickled"),
        ({"time_mode": "wall"}, "time_mode='wall'"),
        ({"output_mode": "complete"}, "does not repeat the results of all earlier ones"),
        ({"output": "id strin"}, "'strin', which is not a type"),
        ({"output": "id string, id int"}, "two columns 'id'"),
        ({"output": 7}, "neither a DDL string"),
        ({"processor": Counting(with_ttl)}, "needs time_mode='processingTime'"),
        ({"processor": Counting(twice)}, "two state variables called 'n'"),
        ({"processor": Counting(unknown_type)}, "'interval', which is not a type"),
        ({"processor": Counting(broken)}, "test_processor_refusals.py.*raised OSError: no model"),
        ({"initial_state": [1]}, "initial_state= got"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(options: dict[str, Any], what: str) -> None:
    given: dict[str, Any] = {"processor": Counting(), "output": OUTPUT, **options}
    with pytest.raises(ms.WorkflowError, match=what):
        ms.transform_with_state(given.pop("processor"), **given)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"function": 7}, "cannot be called"),
        ({"function": lambda key: None}, "cannot be called as"),
        ({"timeout": "Never"}, "timeout='Never'"),
        ({"state": "n"}, "state= got"),
        ({"output_mode": "Complete"}, "cannot be had"),
    ],
)
def test_functions_of_groups_are_refused_likewise(options: dict[str, Any], what: str) -> None:
    given: dict[str, Any] = {"function": group, "output": OUTPUT, "state": "n bigint", **options}
    with pytest.raises(ms.WorkflowError, match=what):
        ms.apply_in_pandas_with_state(given.pop("function"), **given)


def rows(flow: ms.Workflow) -> ms.Stream:
    return flow.source("rows", ms.read.json("in", schema="id string, v bigint, t timestamp"))


def test_jobs_that_lack_what_a_processor_needs_are_refused() -> None:
    stream = rows(ms.Workflow("w"))
    plain = ms.transform_with_state(Counting(), output=OUTPUT)
    timed = ms.transform_with_state(Counting(), output=OUTPUT, time_mode="eventTime")

    with pytest.raises(ms.WorkflowError, match="needs the columns of its stream"):
        stream.key_by(lambda row: row.id).reduce("a", plain)
    with pytest.raises(ms.WorkflowError, match="needs the columns of its stream"):
        stream.map_reduce("b", map=lambda row: [(row.id, 1)], reduce=plain)
    with pytest.raises(ms.WorkflowError, match="no column of event times"):
        stream.key_by("id").reduce("c", timed)
    with pytest.raises(ms.WorkflowError, match="has time= beside a reducer that is not by event"):
        stream.key_by("id").reduce("d", plain, time="t")
    with pytest.raises(ms.WorkflowError, match="has output= beside a reducer of rows"):
        stream.key_by("id").reduce("e", plain, output={"n": int})


def test_schemas_are_ddl_struct_types_or_arrow() -> None:
    struct = StructType([StructField("id", StringType()), StructField("n", LongType())])
    arrow = pa.schema([("id", pa.string()), ("n", pa.int64())])
    for given in (OUTPUT, struct, arrow, {"id": str, "n": int}, "id: string, n: long"):
        made: Any = ms.transform_with_state(Counting(), output=given)
        assert made.output == arrow
    assert reduce_text(reducer_of(made, "job")) == "Counting"


def job(processor: StatefulProcessor) -> Any:
    flow = ms.Workflow("w")
    reducer = ms.transform_with_state(processor, output=OUTPUT)
    rows(flow).key_by("id").reduce("job", reducer)
    return flow._vertices["job"]


def running(processor: StatefulProcessor) -> Running:
    found = Running(job(processor), tasks=1)
    reducer = found.job.row_reducer
    assert reducer is not None
    reducer.open(ms.ReducerContext(job="job", node="n", slots=16, key_columns=("id",)))
    return found


class Yielding(Counting):
    """Yields what it is given."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter([self.output])


@pytest.mark.parametrize("output", [("a", 1), Row(id="a", n="one"), Row("a"), 7])
def test_an_output_that_does_not_fit_is_an_error_with_the_key(output: Any) -> None:
    records = [{"id": "a", "v": 1}]
    with pytest.raises(ms.RecordError, match="gave a wrong type for key 'a'") as caught:
        running(Yielding(output)).epoch(records)

    assert caught.value.function == "Yielding.handleInputRows"
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_a_column_that_a_row_does_not_have_is_null() -> None:
    [found] = running(Yielding(Row(n=1))).epoch([{"id": "a", "v": 1}])

    assert tuple(found) == (None, 1)


class Broken(Counting):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield Row(id=key[0], n=1)
        raise ValueError("no")


def test_an_error_of_a_generator_names_the_users_line_and_the_key() -> None:
    with pytest.raises(ms.UserFunctionError, match="raised ValueError: no for key 'a'") as caught:
        running(Broken()).epoch([{"id": "a", "v": 1}])

    assert caught.value.place is not None
    line = Path(__file__).read_text().splitlines()[caught.value.place.line - 1]
    assert 'raise ValueError("no")' in line


class Silent(Counting):
    """Forgets that results are to be returned."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.n.update((1,))


def test_a_processor_that_returns_nothing_is_named() -> None:
    with pytest.raises(ms.UserFunctionError, match=r"Silent\.handleInputRows, raised") as caught:
        running(Silent()).epoch([{"id": "a", "v": 1}])

    assert caught.value.place is not None and caught.value.place.file == __file__


class Keeping(Counting):
    """Reads the rows of a key too late, and never all of them."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.rows = rows
        known = self.n.get()
        self.n.update(((known[0] if known else 0) + next(rows).v,))
        yield Row(id=key[0], n=self.n.get()[0])


def test_state_objects_serve_every_key_and_rows_need_not_be_read() -> None:
    found = running(Keeping())
    records = [{"id": name, "v": number} for number, name in enumerate("abcab")]

    assert sorted(map(tuple, found.epoch(records))) == [("a", 0), ("b", 1), ("c", 2)]
    assert sorted(map(tuple, found.epoch(records))) == [("a", 0), ("b", 2), ("c", 4)]
