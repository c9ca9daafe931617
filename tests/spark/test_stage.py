"""What a stage makes of event time; without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

import millstream as ms
from millstream.flow.plan import plan
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.spark.stage import StageTask, _Stage
from millstream.state.blocks import KEY, PANE, TIME, WINDOW, from_bytes
from millstream.state.records import decode_records
from millstream.wire.blocks import BLOCK_SCHEMA, MARK
from millstream.wire.calls import Endpoint
from millstream.wire.commit import Commit
from millstream.wire.epoch_record import EpochRecord
from millstream.work.failures import RecordError
from millstream.work.feeder import Feeder
from millstream.work.job_clock import JobClock, Tally, tallies_of
from millstream.work.program import Packed, Program, program_of

MINUTE = 60_000_000
CLOCK = JobClock(closed=2 * MINUTE, watermark=3 * MINUTE)
UTC = pa.timestamp("us", "UTC")


def records(*items: Any) -> None:
    return None


class Flow:
    """A workflow as the executors see it, and where its parts are."""

    def __init__(self, flow: ms.Workflow) -> None:
        self.tasks = (0, 1)
        planned = plan(flow)
        self.program: Program = program_of(planned, 16)
        self.at = {getattr(v, "name", ""): at for at, v in enumerate(planned.vertices)}

    def stage(self, number: int, *branches: str, **clocks: JobClock) -> _Stage:
        task = StageTask(
            Endpoint("nowhere", b""),
            Packed("", b""),
            number,
            0,
            0,
            tuple(self.at[name] for name in branches),
        )
        record = EpochRecord(
            0,
            0,
            0,
            Commit(-1, 0),
            time=9 * MINUTE,
            placement=Placement.alone(Ring.even([NodeId("n")], 16)),
            addresses={},
            clocks={self.at[job]: clock for job, clock in clocks.items()},
            partitions=(0, 8),
            tasks=self.tasks,
        )
        return _Stage(task, self.program, record)


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 1)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


def rows_at(*times: int | None) -> pa.RecordBatch:
    columns = {KEY: ["a"] * len(times), "n": list(range(len(times))), "t": pa.array(times, UTC)}
    return pa.record_batch(columns)


def blocks(batches: Iterator[pa.RecordBatch], target: int) -> list[tuple[int, pa.RecordBatch]]:
    """The blocks for a target, each with its part."""
    return [
        (row["part"], from_bytes(row["block"]))
        for batch in batches
        for row in batch.to_pylist()
        if row["target"] == target
    ]


def rows_of(route: int, *found: tuple[int, int]) -> pa.RecordBatch:
    """Rows of one partition, each with its sequence number and target."""
    empty = dict.fromkeys(BLOCK_SCHEMA.names, 0) | {"block": b"data", "route": route}
    rows = [{**empty, "sequence": sequence, "target": target} for sequence, target in found]
    return pa.RecordBatch.from_pylist(rows, schema=BLOCK_SCHEMA)


def windowed(stream: ms.Stream, name: str = "windowed", **options: Any) -> Any:
    window = ms.tumbling(dt.timedelta(minutes=1))
    options = {"reduce": ms.count(), "key": KEY, "time": "t", "window": window, **options}
    return stream.map_reduce(name, **options)


def test_a_map_task_packs_panes_and_ends_with_one_tally_for_part_0() -> None:
    flow = ms.Workflow("w")
    windowed(flow.source("source", ms.read.text("/nowhere")))
    made = Flow(flow)
    clock = replace(CLOCK, limits={made.at["source"]: 20 * MINUTE})
    stage = made.stage(0, "source", windowed=clock)

    batches = [rows_at(3 * MINUTE, 5, None), rows_at(4 * MINUTE, 21 * MINUTE)]
    found = blocks(stage.map_sources(iter(batches)), made.at["windowed"])

    part, tally = found.pop()
    assert part == 0
    assert tallies_of(tally) == (
        Tally(made.at["source"], rows=2, latest=4 * MINUTE, late=1, ahead=1, untimed=1),
    )
    panes = [pane for _, block in found for pane in block.column(PANE).to_pylist()]
    assert panes == [3 * MINUTE, 4 * MINUTE]


def test_a_tally_names_the_source_before_steps_in_the_jvm() -> None:
    flow = ms.Workflow("w")
    frame = flow.source("source", ms.read.text("/nowhere")).map(ms.sql("*"))
    windowed(frame)
    made = Flow(flow)
    made.at["frame"] = next(
        at for at, origin in made.program.origins.items() if origin == made.at["source"] != at
    )

    found = blocks(
        made.stage(0, "frame", windowed=JobClock()).map_sources(iter([rows_at(7)])),
        made.at["windowed"],
    )

    assert tallies_of(found[-1][1]) == (Tally(made.at["source"], rows=1, latest=7),)


def test_late_values_run_through_the_steps_of_their_side_in_the_same_task() -> None:
    flow = ms.Workflow("w")
    job = windowed(flow.source("source", ms.read.text("/nowhere")))
    job.late.map(lambda row: (row.n, row.time)).sink("late", ms.write.callback(records))
    job.untimed.map(lambda row: row.n).sink("untimed", ms.write.callback(records))
    made = Flow(flow)
    stage = made.stage(0, "source", windowed=CLOCK)

    batches = list(stage.map_sources(iter([rows_at(3 * MINUTE, 5, None)])))

    at = made.at
    [(_, late)], [(_, untimed)] = (blocks(iter(batches), at[s]) for s in ("late", "untimed"))
    assert decode_records(late) == [(1, dt.datetime(1970, 1, 1, 0, 0, 0, 5, dt.UTC))]
    assert decode_records(untimed) == [2]


def test_a_windowed_job_without_any_time_is_an_error() -> None:
    flow = ms.Workflow("w")
    windowed(flow.source("source", ms.read.text("/nowhere")), time=None)
    made = Flow(flow)

    with pytest.raises(RecordError, match=r"'windowed'.*without an event time"):
        list(made.stage(0, "source", windowed=JobClock()).map_sources(iter([rows_at(1)])))


def test_results_of_windows_pass_their_time_to_all_jobs_with_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = ms.Workflow("w")
    source = flow.source("source", ms.read.text("/nowhere"))
    minute, hour = (ms.tumbling(dt.timedelta(minutes=n)) for n in (1, 60))
    short = windowed(source, "short", window=minute)
    both = windowed(source, "both", window=[minute, hour])
    windowed(short, "after", time=None, window=minute)
    both.sink("sink", ms.write.callback(records))
    made = Flow(flow)
    [leader] = made.program.stages[1]
    windows = made.program.jobs[leader].windowing
    assert windows is not None
    of_minute, of_hour = windows.windows.index(minute), windows.windows.index(hour)
    output = pa.record_batch(
        {
            KEY: ["a", "b", "c"],
            "value": [1, 2, 3],
            WINDOW: pa.array([of_minute, of_minute, of_hour], pa.int32()),
            TIME: [MINUTE - 1, 2 * MINUTE - 1, 60 * MINUTE - 1],
        }
    )
    given: list[tuple[Any, ...]] = []

    def feed(self: Feeder, *arguments: Any) -> list[pa.RecordBatch]:
        given.append(arguments)
        return [output]

    monkeypatch.setattr(Feeder, "feed", feed)
    stage = made.stage(1, after=JobClock())

    batches = list(stage.feed(iter([rows_of(0, (0, MARK))])))

    found = blocks(iter(batches), made.at["after"])
    panes = {
        key: pane
        for _, block in found
        for key, pane in zip(*(block.column(c).to_pylist() for c in (KEY, PANE)), strict=True)
    }
    assert panes == {"a": 0, "b": MINUTE}  # and no tally: the watermark is inherited
    sunk = [b for _, b in blocks(iter(batches), made.at["sink"])]
    assert [block.schema.names for block in sunk] == [[KEY, "value"]] * 3
    assert [block.column(KEY).to_pylist() for block in sunk] == [["a"], ["b"], ["c"]]
    assert given[0][-1] is True  # its results are read


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, range, list[int]]]:
    """What is fed: the job, the slots, and the sequence numbers of the blocks."""
    found: list[tuple[int, range, list[int]]] = []

    def feed(self: Feeder, job: int, slots: range, rows: pa.Table, read: bool) -> list[Any]:
        found.append((job, slots, rows.column("sequence").to_pylist()))
        return []

    monkeypatch.setattr(Feeder, "feed", feed)
    return found


def two_jobs() -> Flow:
    """Two jobs of one level, and one behind them."""
    flow = ms.Workflow("w")
    source = flow.source("source", ms.read.text("/nowhere"))
    first = windowed(source, "first")
    windowed(source, "second", reduce=ms.max("n"), window=ms.session(dt.timedelta(minutes=1)))
    windowed(first, "after", time=None)
    return Flow(flow)


def test_a_map_stage_sends_a_mark_to_every_partition_of_the_next() -> None:
    made = two_jobs()
    assert made.program.width(1, 2) == 4

    batches = list(made.stage(0, "source", first=CLOCK, second=CLOCK).map_sources(iter([])))

    rows = [row for batch in batches for row in batch.to_pylist() if row["target"] == MARK]
    assert [row["route"] for row in rows] == [0, 1, 2, 3]


def test_only_the_first_task_sends_marks_and_only_before_a_shuffle(
    monkeypatch: pytest.MonkeyPatch, fed: list[Any]
) -> None:
    made = two_jobs()

    def marks(stage: int, route: int) -> int:
        batches = list(made.stage(stage, after=CLOCK).feed(iter([rows_of(route, (0, MARK))])))
        return sum(row["target"] == MARK for batch in batches for row in batch.to_pylist())

    assert [marks(1, 0), marks(1, 1), marks(1, 3), marks(2, 0)] == [2, 0, 0, 0]


@pytest.mark.parametrize("route", range(4))
def test_a_stage_feeds_the_slots_that_its_rows_name_whatever_task_runs_it(
    fed: list[tuple[int, range, list[int]]], route: int
) -> None:
    made = two_jobs()
    job = made.at["first" if route < 2 else "second"]
    batches = [rows_of(route, (1, job), (0, MARK), (2, job)), rows_of(route, (3, job))]

    list(made.stage(1, after=CLOCK).feed(iter(batches)))

    slots = range(8) if route % 2 == 0 else range(8, 16)
    assert fed == [(job, slots, [1, 2, 3])]


def test_a_task_feeds_all_of_its_partitions_each_with_its_own_blocks(
    fed: list[tuple[int, range, list[int]]],
) -> None:
    made = two_jobs()
    made.tasks = (0, 0)
    job = made.at["second"]
    batch = rows_of(1, (1, job), (0, MARK), (2, job), (3, job))
    parts = pa.array([1, 0, 1, 0], pa.int32())
    mixed = batch.set_column(BLOCK_SCHEMA.get_field_index("part"), "part", parts)

    list(made.stage(1, after=CLOCK).feed(iter([mixed])))
    list(made.stage(1, after=CLOCK).feed(iter([rows_of(1, (0, MARK))])))

    assert fed == [
        (job, range(8), [3]),
        (job, range(8, 16), [1, 2]),
        (job, range(8), []),
        (job, range(8, 16), []),
    ]


def test_blocks_for_later_stages_pass_and_marks_do_not(
    fed: list[tuple[int, range, list[int]]],
) -> None:
    made = two_jobs()
    job, after = made.at["first"], made.at["after"]
    batch = rows_of(1, (1, after), (2, job), (0, MARK), (3, after))

    batches = list(made.stage(1, after=CLOCK).feed(iter([batch])))

    assert fed == [(job, range(8, 16), [2])]
    passed = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["sequence"], row["target"]) for row in passed] == [(1, after), (3, after)]


def test_a_partition_without_a_mark_feeds_nothing(fed: list[Any]) -> None:
    assert list(two_jobs().stage(1).feed(iter([]))) == []
    assert fed == []
