"""What the sides of a join make of records, rows and batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import Place
from millstream.flow.joins import JoinSide
from millstream.flow.windows import WithinWindow
from millstream.state.records import row_type
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Gate, runs_of
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.job_clock import JobClock, Tally
from millstream.work.join_sides import run_side
from millstream.work.keyed_batches import Pairs
from tests.work.windows.join_rig import join_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROW = row_type(("id", "n", "at"))
BATCH = pa.record_batch(
    {
        "id": ["a", "b"],
        "n": [1, 2],
        "at": pa.array([NOON, None], pa.timestamp("us", "UTC")),
    }
)


def tagged(chunk: Chunk, **options: Any) -> list[Any]:
    side = JoinSide(Place("here.py", 1), name="both", side="right", **options)
    return [record for found in run_side(side, chunk) for record in found.records()]


def test_pairs_and_triples_keep_their_key_and_time() -> None:
    assert tagged(Chunk(records=[("a", 1)])) == [("a", ("right", 1))]
    assert tagged(Chunk(records=[("a", 1, NOON)])) == [("a", ("right", 1), NOON)]


def test_a_row_with_named_columns_is_the_value_as_a_whole() -> None:
    found = tagged(Chunk(batch=BATCH), key="id", time="at")

    assert found == [
        ("a", ("right", ROW("a", 1, NOON)), NOON),
        ("b", ("right", ROW("b", 2, None)), None),
    ]
    assert tagged(Chunk(batch=BATCH), key=("id", "n"))[0][0] == ("a", 1)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Lima", None])
def test_a_row_whose_time_no_calendar_has_is_left_out_as_a_job_does(zone: str | None) -> None:
    stamps = pa.array([1, 2**60, -(2**60), None], pa.timestamp("us", zone))
    batch = pa.record_batch({"id": list("abcd"), "at": stamps})
    gate = Gate(join_of(WithinWindow(60_000_000)), JobClock(), 0, ["late", "ahead", "untimed"])

    found = tagged(Chunk(batch=batch), key="id", time="at")
    admitted = gate.admit(Pairs(found, True), 0)

    assert [(key, value[0]) for key, (_, value), _ in found] == [(key, key) for key in "abcd"]
    assert [value["at"] for _, (_, value), _ in found[1:]] == [None] * 3
    assert admitted.taken.times.tolist() == [1]
    assert gate.tallies == (Tally(0, rows=1, latest=1, late=1, ahead=1, untimed=1),)


def test_a_row_whose_time_is_a_number_stays_as_it_is() -> None:
    batch = pa.record_batch({"id": ["a", "b"], "at": [1.0, float("inf")]})

    found = tagged(Chunk(batch=batch), key="id", time="at")

    assert [value for _, (_, value), _ in found] == [("a", 1.0), ("b", float("inf"))]


def test_a_function_chooses_the_key_of_records() -> None:
    found = tagged(Chunk(records=["ab", "c"]), key=len)

    assert found == [(2, ("right", "ab")), (1, ("right", "c"))]


def test_the_time_of_a_window_stays_with_its_results() -> None:
    side = JoinSide(Place("here.py", 1), name="both")

    [found] = run_side(side, Chunk(records=[("a", 1)], time=77))

    assert found.time == 77


def test_errors_name_the_join_and_the_side() -> None:
    with pytest.raises(RecordError, match=r"'both \(right side\)' has no column 'id2'"):
        tagged(Chunk(batch=BATCH), key="id2")
    with pytest.raises(RecordError, match="not a \\(key, value\\) pair"):
        tagged(Chunk(records=["a"]))
    with pytest.raises(UserFunctionError, match=r"key of job 'both \(right side\)'"):
        tagged(Chunk(records=["a"]), key=lambda record: record.nothing)


def test_a_value_behind_the_watermark_is_late_and_has_its_side() -> None:
    job = join_of(WithinWindow(60_000_000))
    gate = Gate(job, JobClock(closed=1000, watermark=2000), 0, ["late"])
    items = [("a", ("left", 1), 0.000999), ("a", ("right", 2), 0.001)]

    admitted = gate.admit(Pairs(items, True), 0)

    assert admitted.taken.values == Pairs(items[1:], True)
    assert list(admitted.sides["late"].records()) == items[:1]


def test_results_of_a_join_form_one_chunk() -> None:
    rows = pa.record_batch({"key": ["a", "b"], "time": [1, 2]})

    [(window, chunk)] = runs_of(rows, timed=True)

    assert (window, len(chunk), chunk.time) == (0, 2, None)
