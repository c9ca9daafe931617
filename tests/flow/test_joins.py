"""How joins are described, and what is refused, with the user's line."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.joins import JoinSide
from millstream.flow.plan import plan
from millstream.flow.reducers import JoinKind, JoinReducer
from millstream.flow.streams import Stream
from millstream.flow.time_origins import timings_of
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import WithinWindow
from tests.flow.places import line_of, line_of_call

MINUTE = timedelta(minutes=1)
MICROS = 60_000_000


def number(record: Any) -> int:
    return len(record)


def text(record: Any) -> str:
    return str(record)


def total(key: str, left: int, right: int) -> tuple[str, int]:
    return key, left + right


def takes_two(left: Any, right: Any) -> Any:
    return left, right


def streams() -> tuple[ms.Workflow, Stream, Stream]:
    flow = ms.Workflow("flow")
    return flow, flow.source("a", ms.read.rate(1)), flow.source("b", ms.read.rate(1))


def job(flow: ms.Workflow, name: str) -> JobVertex:
    return next(vertex for _, vertex in plan(flow).jobs if vertex.name == name)


def sides(flow: ms.Workflow) -> dict[str, JoinSide]:
    return {side.side: side for _, side in plan(flow).of_kind(JoinSide)}


def test_a_join_is_a_windowed_job_over_both_sides() -> None:
    flow, a, b = streams()
    a.join(b, "both", how="left", within=MINUTE, key="id", time="at", lateness=2 * MINUTE)

    joined = job(flow, "both")
    assert joined.reducer == JoinReducer(MICROS, "left")
    assert joined.windowing is not None
    assert joined.windowing.windows == (WithinWindow(MICROS),)
    assert joined.windowing.lateness == 2 * MICROS
    [timing] = timings_of(plan(flow))
    assert [origin.name for origin in timing.tracked] == ["a", "b"]


def test_the_right_side_has_the_key_and_time_of_the_left_unless_it_says_its_own() -> None:
    flow, a, b = streams()
    a.join(b, "both", within=MINUTE, key="id", time="at")
    assert {(s.key, s.time) for s in sides(flow).values()} == {("id", "at")}

    flow, a, b = streams()
    a.join(b, "both", within=MINUTE, key="id", time="at", right_key=("x", "y"), right_time="t")
    assert (sides(flow)["right"].key, sides(flow)["right"].time) == (("x", "y"), "t")


def test_a_stream_can_be_joined_with_itself() -> None:
    flow, a, _ = streams()
    a.join(a, "twice", within=MINUTE)

    assert set(sides(flow)) == {"left", "right"}


def test_joins_of_one_stream_on_one_key_share_its_side() -> None:
    flow, a, b = streams()
    a.join(b, "one", within=MINUTE, key="id")
    a.join(b, "other", window=ms.tumbling(MINUTE), key="id")
    a.join(b, "third", within=MINUTE, key="else")

    assert len(plan(flow).of_kind(JoinSide)) == 4


def test_types_come_from_annotations() -> None:
    flow, a, b = streams()
    a.join(b, "both", within=MINUTE, key=number, on_match=total)

    joined = job(flow, "both")
    assert joined.key_type == pa.int64()
    assert joined.output == pa.schema([("key", pa.string()), ("value", pa.int64())])


@pytest.mark.parametrize(
    ("how", "options", "delay"),
    [
        ("inner", {"within": MINUTE}, 0),
        ("left", {"within": MINUTE}, MICROS),
        ("right", {"within": MINUTE}, MICROS),
        ("outer", {"within": MINUTE}, MICROS),
        ("inner", {"window": ms.tumbling(2 * MINUTE)}, 2 * MICROS),
    ],
)
def test_what_reads_a_join_waits_for_results_behind_its_watermark(
    how: JoinKind, options: dict[str, Any], delay: int
) -> None:
    flow, a, b = streams()
    joined = a.join(b, "both", how=how, **options)
    joined.map_reduce("next", reduce=ms.count(), time="time", window=ms.tumbling(MINUTE))

    [of_join, of_next] = timings_of(plan(flow))
    assert of_next.inherited == (of_join.job,)
    assert of_next.delays == {of_join.job: delay}


def test_the_plan_explains_joins() -> None:
    flow, a, b = streams()
    a.join(b, "both", how="left", within=MINUTE, on_match=total)

    told = flow.explain()

    for line in ("left join, total", "within 1m", "left side of both", "right side of both"):
        assert line in told
    assert "all values of both sides, for 2m" in told


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"within": MINUTE, "how": "full"}, "'inner', 'left', 'right', 'outer'"),
    ({}, "neither within= nor window="),
    ({"within": MINUTE, "window": ms.tumbling(MINUTE)}, "both within= and window="),
    ({"within": 5}, "within= of join 'both' is 5"),
    ({"within": -MINUTE}, "within= of join 'both' is"),
    ({"window": ms.session(MINUTE)}, "has window=SessionWindow"),
    ({"within": MINUTE, "key": 3}, "key got 3"),
    ({"within": MINUTE, "right_key": ()}, "key got"),
    ({"within": MINUTE, "time": 3}, "time=3"),
    ({"within": MINUTE, "key": number, "time": "at"}, "beside a function of records"),
    ({"within": MINUTE, "lateness": 3}, "lateness is 3"),
    ({"within": MINUTE, "durable": 1}, "durable=1"),
    ({"within": MINUTE, "on_match": 3}, "on_match of join 'both' got 3"),
    ({"within": MINUTE, "key": number, "right_key": text}, "int64 on the left side and string"),
    ({"within": MINUTE, "output": {"key": str, "n": int}}, "but gives key, left, right, time"),
    (
        {"within": MINUTE, "time": ms.processing_time, "right_time": "t"},
        "time=ms.processing_time and right_time='t'",
    ),
]


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_makes_no_sense_is_refused_with_its_line(options: dict[str, Any], said: str) -> None:
    _, a, b = streams()

    with pytest.raises(WorkflowError) as caught:
        a.join(b, "both", **options)

    assert said in str(caught.value)
    assert caught.value.place == line_of_call(caught)


def test_a_function_of_the_wrong_shape_is_refused_at_its_own_line() -> None:
    _, a, b = streams()

    with pytest.raises(WorkflowError, match=r"cannot be called as \(key, left, right\)") as caught:
        a.join(b, "both", within=MINUTE, on_match=takes_two)

    assert caught.value.place == line_of(takes_two)


def test_a_function_that_cannot_be_shipped_is_refused() -> None:
    _, a, b = streams()
    lock = threading.Lock()

    with pytest.raises(WorkflowError, match="cannot be pickled"):
        a.join(b, "both", within=MINUTE, on_match=lambda key, left, right: (lock, key))


def test_only_streams_of_the_same_workflow_can_be_joined() -> None:
    _, a, _ = streams()
    _, other, _ = streams()

    with pytest.raises(WorkflowError, match="which is not a stream") as caught:
        a.join("b", "both", within=MINUTE)  # type: ignore[arg-type]
    assert caught.value.place == line_of_call(caught)
    with pytest.raises(WorkflowError, match="take both streams from one workflow"):
        a.join(other, "both", within=MINUTE)


def test_the_name_of_a_join_is_that_of_a_job() -> None:
    _, a, b = streams()
    a.join(b, "both", within=MINUTE)

    with pytest.raises(WorkflowError, match="the name 'both' is taken by the job"):
        b.join(a, "both", within=MINUTE)
