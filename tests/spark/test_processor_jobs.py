# ruff: noqa: N802, N803
"""Jobs with processors, reduced on one node without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import cloudpickle
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import millstream as ms
from millstream.flow.function_shipping import ship
from millstream.flow.vertices import JobVertex
from millstream.times import BEGINNING, END
from millstream.work import row_operator
from millstream.work.job_clock import JobClock
from millstream.work.packers.row_list_packer import RowListPacker
from millstream.work.unit import UnitContext
from tests.work.running import ALL, SLOTS, Running
from tests.work.timed_running import SECOND, TimedRunning

OUTPUT = "id string, n bigint"


class Watermarks(StatefulProcessor):
    """Yields the watermark of each call."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(100_000)
        yield Row(id=key[0], n=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(id=key[0], n=timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass


def by_timeout(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    state.setTimeoutTimestamp(100_000)
    yield pd.DataFrame({"id": [key[0]], "n": [state.getCurrentWatermarkMs()]})


def by_processor() -> ms.Reducer:
    return ms.transform_with_state(Watermarks(), output=OUTPUT, time_mode="eventTime")


def by_function() -> ms.Reducer:
    return ms.apply_in_pandas_with_state(
        by_timeout, output=OUTPUT, state="n bigint", timeout="EventTimeTimeout"
    )


def opened(reducer: ms.Reducer, **options: Any) -> TimedRunning:
    """A job on a node."""
    flow = ms.Workflow("w")
    source = ms.read.json("in", schema="id string, v bigint, t timestamp")
    flow.source("rows", source).key_by("id").reduce("job", reducer, **options)
    job = flow._vertices["job"]
    assert isinstance(job, JobVertex) and job.row_reducer is not None
    job.row_reducer.open(ms.ReducerContext(job="job", node="n", slots=16, key_columns=("id",)))
    return TimedRunning(job)


@pytest.mark.parametrize("made", [by_processor, by_function])
@pytest.mark.parametrize("before", [40, None])
def test_a_node_that_takes_slots_over_has_the_watermark_at_the_end_of_the_stream(
    made: Any, before: int | None
) -> None:
    owner, heir = (opened(made(), time="t") for _ in range(2))
    owner.epoch([{"id": "a", "v": 1, "t": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}], 1, before)
    state = owner.operator.state
    heir.operator.state.apply(state.decode(state.encode(state.snapshot(range(SLOTS)))))

    closed = BEGINNING if before is None else before * SECOND
    end = JobClock(closed, END, timed=True)
    unit = UnitContext(range(SLOTS), 2 * SECOND, owner.job.output, clock=end, epoch=1)
    found = [
        [row for batch in node.operator.reduce([], unit).outputs for row in batch.to_pylist()]
        for node in (owner, heir)
    ]

    assert found == [[{"id": "a", "n": (before or 0) * 1000}]] * 2


class Counting(StatefulProcessor):
    """Counts the rows of a key; holds a module."""

    def __init__(self) -> None:
        self.json = json

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self.n.get() or (0,)
        self.n.update((n + len(list(rows)),))
        yield Row(id=self.json.dumps(key), n=self.n.get()[0])

    def close(self) -> None:
        pass


def counted(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    (n,) = state.get if state.exists else (0,)
    state.update((n + sum(map(len, frames)),))
    yield pd.DataFrame({"id": [json.dumps(key)], "n": [state.get[0]]})


def one_processor() -> list[ms.Reducer]:
    processor = Counting()
    return [ms.transform_with_state(processor, output=OUTPUT) for _ in range(2)]


def one_reducer() -> list[ms.Reducer]:
    return [ms.transform_with_state(Counting(), output=OUTPUT)] * 2


def one_reducer_of_groups() -> list[ms.Reducer]:
    return [ms.apply_in_pandas_with_state(counted, output=OUTPUT, state="n bigint")] * 2


@pytest.mark.parametrize("made", [one_processor, one_reducer, one_reducer_of_groups])
def test_two_jobs_of_one_processor_have_state_and_keys_of_their_own(made: Any) -> None:
    flow = ms.Workflow("w")
    stream = flow.source("rows", ms.read.json("in", schema="id string, v bigint"))
    one, two = made()
    stream.key_by("id").reduce("one", one)
    stream.key_by(("id", "v")).reduce("two", two)
    # In one pickle, as nodes get the jobs of a workflow.
    jobs = cloudpickle.loads(ship([flow._vertices["one"], flow._vertices["two"]]))
    keys = (("id",), ("id", "v"))
    for job, columns in zip(jobs, keys, strict=True):
        job.row_reducer.open(
            ms.ReducerContext(job=job.name, node="n", slots=16, key_columns=columns)
        )

    first, second = map(Running, jobs)
    rows = [{"id": "a", "v": 1}, {"id": "a", "v": 1}]
    assert [tuple(row) for row in second.epoch(rows)] == [('["a", 1]', 2)]
    assert [tuple(row) for row in first.epoch(rows[:1])] == [('["a"]', 1)]
    assert [tuple(row) for row in second.epoch(rows)] == [('["a", 1]', 4)]


class Locked:
    """A function that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, key: Any, frames: Any, state: Any) -> None: ...


def test_a_function_that_cannot_be_pickled_is_refused_by_the_job() -> None:
    reducer = ms.apply_in_pandas_with_state(Locked(), output=OUTPUT, state="n bigint")
    with pytest.raises(ms.WorkflowError, match="GroupStateReducer, cannot be pickled"):
        opened(reducer)


def test_the_class_of_a_processor_is_left_as_it_is() -> None:
    class Local(Counting):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.is_initialized = True

    processor, method = Local(), Local.init
    reducer = ms.transform_with_state(processor, output=OUTPUT)
    opened(reducer)

    assert Local.init is method
    assert vars(processor) == {"json": json}


class Structs(StatefulProcessor):
    """Reads structs by the names of their fields, and yields what it read."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "s struct<x:int,y:array<struct<z:string>>>")
        self.list = handle.getListState("list", "s struct<x:int>")
        self.map = handle.getMapState("map", "k struct<a:int>", "s struct<x:int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.value.update((Row(x=1, y=[("z",)]),))
        self.list.appendValue(((2,),))
        self.map.updateValue(((3,),), ({"x": 4},))
        (found,) = self.value.get()
        names = [found.y[0].z, *(item.x for (item,) in self.list.get())]
        names += [(k.a, s["x"]) for (k,), (s,) in self.map.iterator()]
        names.append(self.map.getValue(((3,),)).s.asDict())
        yield Row(id=str(names), s=found)

    def close(self) -> None:
        pass


def test_structs_in_state_are_rows() -> None:
    output = "id string, s struct<x:int,y:array<struct<z:string>>>"
    run = opened(ms.transform_with_state(Structs(), output=output))
    now = datetime(2026, 1, 1, tzinfo=UTC)

    [found] = run.epoch([{"id": "a", "v": 1, "t": now}], 1)

    assert found.id == "['z', 2, (3, 4), {'x': 4}]"
    assert found.s == {"x": 1, "y": [{"z": "z"}]}


class Reuse(StatefulProcessor):
    """Yields one object several times, changed in between."""

    def __init__(self, in_pandas: bool) -> None:
        self.in_pandas = in_pandas

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        frame = pd.DataFrame({"id": [key[0]], "ns": [[0]]})
        numbers: list[int] = []
        for number in range(3):
            numbers.append(number)
            frame.loc[0, "id"] = str(number)
            frame["ns"] = [list(numbers)]
            yield frame if self.in_pandas else Row(id=str(number), ns=numbers)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("in_pandas", [False, True])
def test_a_result_is_as_it_was_when_it_was_yielded(in_pandas: bool) -> None:
    output = "id string, ns array<int>"
    reducer = ms.transform_with_state(Reuse(in_pandas), output=output, in_pandas=in_pandas)
    row = {"id": "a", "v": 1, "t": datetime(2026, 1, 1, tzinfo=UTC)}

    found = opened(reducer).epoch([row], 1)

    assert list(map(tuple, found)) == [("0", [0]), ("1", [0, 1]), ("2", [0, 1, 2])]


class First(StatefulProcessor):
    """Counts initial rows."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.n.update(((self.n.get() or (0,))[0] + 1,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(id=key[0], n=self.n.get()[0])

    def close(self) -> None:
        pass


def test_initial_rows_are_packed_once_for_all_units(monkeypatch: pytest.MonkeyPatch) -> None:
    packers: list[RowListPacker] = []

    def packer(*given: Any) -> RowListPacker:
        packers.append(RowListPacker(*given))
        return packers[-1]

    monkeypatch.setattr(row_operator, "RowListPacker", packer)
    initial = pa.table({"id": [f"{n % 10}" for n in range(30)]})
    reducer = ms.transform_with_state(First(), output=OUTPUT, initial_state=initial)
    operator = opened(reducer).operator
    for slots in (range(5), range(5, 9), range(9, SLOTS)):
        operator.state.apply(operator.reduce([], UnitContext(slots, SECOND, None)).fragment)

    assert dict(operator.state.items(ALL)) == {f"{n}": {"n": 3} for n in range(10)}
    assert len(packers) == 1
