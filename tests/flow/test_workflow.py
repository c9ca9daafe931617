from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.plan import plan
from millstream.flow.reducers import AggregateReducer, StatefulReducer
from millstream.flow.sources import DataFrameSource
from millstream.flow.streams import Stream
from millstream.flow.vertices import (
    BatchStep,
    FrameVertex,
    JobVertex,
    RecordStep,
    UnionVertex,
    Vertex,
)
from millstream.flow.windows import Windowing
from millstream.flow.workflow import Workflow
from tests.flow.places import line_of, line_of_call, next_line

SECOND = timedelta(seconds=1)


class Frame:
    """As much of a DataFrame as a description looks at."""

    def __init__(self, *, streaming: bool) -> None:
        self.isStreaming = streaming


def split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def length(line: str) -> int:
    return len(line)


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    yield word, sum(ones)


def thin_out(key: str, values: list[int]) -> list[int]:
    return [sum(values)]


def gives_anything(line: str) -> Iterator[tuple[Any, int]]:
    yield line, 1


def over_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


@pytest.fixture
def lines(flow: Workflow) -> Stream:
    return flow.source("lines", ms.read.text("books"))


def vertex_of(stream: Stream) -> Vertex:
    return stream._vertex


def job_of(stream: Stream) -> JobVertex:
    vertex = stream._vertex
    assert isinstance(vertex, JobVertex)
    return vertex


# -- what is built -------------------------------------------------------------------------


def test_a_job_keeps_what_it_was_given(lines: Stream) -> None:
    place = next_line()
    job = job_of(lines.map_reduce("n", map=split, combine=thin_out, reduce=count, ttl=SECOND))

    assert (job.name, job.map, job.combine, job.ttl) == ("n", split, thin_out, SECOND)
    assert job.reducer == StatefulReducer(count)
    assert job.inputs == (vertex_of(lines),)
    assert job.place == place


def test_a_job_takes_its_types_from_annotations(lines: Stream) -> None:
    job = job_of(lines.map_reduce("n", map=split, reduce=count))

    assert job.key_type == pa.string()
    assert job.output == pa.schema({"key": pa.string(), "value": pa.int64()})


def test_declared_types_win_over_annotations(lines: Stream) -> None:
    output = {"word": str, "n": pa.int32()}
    job = job_of(lines.flat_map(split).key_by(type=bytes).reduce("n", count, output=output))

    assert job.key_type == pa.binary()
    assert job.output == pa.schema({"word": pa.string(), "n": pa.int32()})


def test_a_declared_arrow_key_type_is_made_canonical(lines: Stream) -> None:
    job = job_of(lines.key_by("word", type=pa.int32()).reduce("n", count))

    assert job.key_type == pa.int64()


def test_the_type_of_a_key_function_is_the_type_of_the_keys(lines: Stream) -> None:
    assert job_of(lines.key_by(length).reduce("n", ms.count())).key_type == pa.int64()


def test_types_without_annotations_are_left_to_the_data(lines: Stream) -> None:
    job = job_of(lines.map_reduce("n", map=lambda line: [(line, 1)], reduce=lambda k, v, s: None))

    assert job.key_type is None
    assert job.output is None


def test_a_key_annotated_as_anything_is_left_to_the_data(lines: Stream) -> None:
    assert job_of(lines.map_reduce("n", map=gives_anything, reduce=count)).key_type is None


def test_a_keyed_stream_becomes_a_job_with_that_key(lines: Stream) -> None:
    keyed = lines.key_by(("a", "b"), type=str)
    job = job_of(keyed.reduce("n", count, combine=thin_out, ttl=SECOND, durable=False))

    assert (job.key, job.map, job.combine) == (("a", "b"), None, thin_out)
    assert (job.ttl, job.key_type, job.durable) == (SECOND, pa.string(), False)


def test_a_windowed_stream_becomes_a_job_with_these_windows(lines: Stream) -> None:
    windows = ms.tumbling(SECOND), ms.sliding(2 * SECOND, SECOND)
    divided = lines.key_by("word").window(
        *windows, time="at", lateness=SECOND, early_every=SECOND, panes=True
    )
    job = job_of(divided.reduce("n", ms.count(), ordered=True, share=False))

    assert (job.key, job.time, job.share) == ("word", "at", False)
    assert job.windowing == Windowing(windows, False, 1_000_000, 1_000_000, True, True)


def test_aggregates_are_given_by_the_names_of_their_columns(lines: Stream) -> None:
    keyed = lines.key_by("word")
    expected = AggregateReducer(ms.aggregate(n=ms.count(), most=ms.max("size")))

    assert job_of(keyed.aggregate("a", n=ms.count(), most=ms.max("size"))).reducer == expected
    divided = keyed.window(ms.tumbling(SECOND), time="at")
    assert job_of(divided.aggregate("b", n=ms.count(), most=ms.max("size"))).reducer == expected


def test_key_and_time_columns_go_with_arrow_maps_sql_maps_and_bare_rows(lines: Stream) -> None:
    lines.map_reduce("a", map=ms.arrow(over_batch), key="word", time="at", reduce=count)
    lines.map_reduce("b", map=ms.sql("word", "at"), key="word", time="at", reduce=count)
    job = job_of(lines.map_reduce("c", key=("word", "n"), time="at", reduce=count))

    assert (job.key, job.time) == (("word", "n"), "at")


def test_a_sql_map_of_a_job_becomes_a_step_of_its_own(lines: Stream) -> None:
    job = job_of(lines.map_reduce("n", map=ms.sql("value AS key"), reduce=ms.count()))

    assert job.map is None
    (step,) = job.inputs
    assert isinstance(step, FrameVertex)
    assert step.step == ms.sql("value AS key")


def test_steps_keep_their_function_kind_and_schema(lines: Stream) -> None:
    mapped, flat = vertex_of(lines.map(length)), vertex_of(lines.flat_map(split))
    kept = vertex_of(lines.filter(length))

    assert isinstance(mapped, RecordStep)
    assert (mapped.kind, mapped.function) == ("map", length)
    assert mapped.schema == pa.schema({"value": pa.int64()})
    assert isinstance(flat, RecordStep)
    assert flat.kind == "flat_map"
    assert flat.schema == pa.schema({"key": pa.string(), "value": pa.int64()})
    assert isinstance(kept, RecordStep)
    assert (kept.kind, kept.schema) == ("filter", None)


def test_an_arrow_step_keeps_its_function_and_declared_schema(lines: Stream) -> None:
    step = vertex_of(lines.map(ms.arrow(over_batch), output={"n": int}))

    assert isinstance(step, BatchStep)
    assert step.function is over_batch
    assert step.schema == pa.schema({"n": pa.int64()})


def test_a_condition_in_sql_filters_in_the_jvm(lines: Stream) -> None:
    step = vertex_of(lines.filter(ms.sql(where="value <> ''")))

    assert isinstance(step, FrameVertex)


def test_a_union_joins_streams_of_one_workflow(flow: Workflow, lines: Stream) -> None:
    more = flow.source("more", ms.read.text("papers"))

    joined = vertex_of(lines.union(more, lines))

    assert isinstance(joined, UnionVertex)
    assert joined.inputs == (vertex_of(lines), vertex_of(more), vertex_of(lines))


def test_a_streaming_dataframe_is_a_source(flow: Workflow) -> None:
    frame = Frame(streaming=True)
    flow.source("frame", frame)

    vertex = flow._vertices["frame"]
    assert isinstance(vertex, ms.flow.vertices.SourceVertex)
    assert isinstance(vertex.source, DataFrameSource)
    assert vertex.source.frame is frame


def test_what_was_built_cannot_be_changed(lines: Stream) -> None:
    with pytest.raises(FrozenInstanceError):
        vertex_of(lines).place = next_line()  # type: ignore[misc]


# -- names ---------------------------------------------------------------------------------

BAD_NAMES = ["", "two words", "-dash", ".dot", "a/b", "é", "line\n", None, 7, ["a"]]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_for_a_workflow_is_refused(name: Any) -> None:
    with pytest.raises(WorkflowError, match="not a name for a workflow; use letters") as caught:
        Workflow(name)

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("source", lambda flow, lines, name: flow.source(name, ms.read.rate())),
        ("stream", lambda flow, lines, name: flow.stream(name)),
        ("job", lambda flow, lines, name: lines.map_reduce(name, reduce=ms.count())),
        ("job", lambda flow, lines, name: lines.key_by("a").reduce(name, ms.count())),
        ("sink", lambda flow, lines, name: lines.sink(name, ms.write.console())),
    ],
)
def test_a_bad_name_inside_a_workflow_is_refused(
    flow: Workflow, lines: Stream, kind: str, use: Callable[..., object], name: Any
) -> None:
    with pytest.raises(WorkflowError, match=f"not a name for a {kind}; use letters") as caught:
        use(flow, lines, name)

    assert caught.value.place == line_of(use)


@pytest.mark.parametrize("name", ["a", "Z9", "0", "a.b-c_d", "lines"])
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    flow = Workflow(name)
    flow.source(name, ms.read.rate())

    assert flow.name == name


@pytest.mark.parametrize("taken", ["lines", "job", "out"])
@pytest.mark.parametrize(
    "use",
    [
        lambda flow, name: flow.source(name, ms.read.rate()),
        lambda flow, name: flow.stream("lines").map_reduce(name, reduce=ms.count()),
        lambda flow, name: flow.stream("lines").key_by("a").reduce(name, ms.count()),
        lambda flow, name: flow.stream("lines").sink(name, ms.write.console()),
    ],
)
def test_a_name_is_used_once(taken: str, use: Callable[..., object]) -> None:
    flow, first = Workflow("w"), next_line()
    flow.source("lines", ms.read.rate()).map_reduce("job", reduce=count).sink(
        "out", ms.write.console()
    )
    kind = {"lines": "source", "job": "job", "out": "sink"}[taken]

    with pytest.raises(WorkflowError, match=f"the name '{taken}' is taken") as caught:
        use(flow, taken)

    assert caught.value.what.endswith(f"by the {kind} at {first}")
    assert "another name" in caught.value.fix
    assert caught.value.place == line_of(use)


def test_a_name_stays_free_when_its_first_use_failed(flow: Workflow, lines: Stream) -> None:
    for wrong in (
        lambda: lines.map_reduce("again", reduce=7),
        lambda: lines.sink("again", 7),  # type: ignore[arg-type]
        lambda: flow.source("again", 7),
    ):
        with pytest.raises(WorkflowError):
            wrong()

    lines.map_reduce("again", reduce=ms.count())

    assert [job.name for _, job in plan(flow).jobs] == ["again"]


# -- unions, sources and sinks -------------------------------------------------------------


def test_a_union_across_workflows_is_refused(lines: Stream) -> None:
    other = Workflow("other").source("lines", ms.read.rate())

    with pytest.raises(WorkflowError, match=r"workflow 'other', but this one .* 'w'") as caught:
        lines.union(lines, other)

    assert caught.value.fix == "take both streams from one workflow"
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("given", [None, "lines", ms.read.rate()])
def test_a_union_with_what_is_no_stream_is_refused(lines: Stream, given: Any) -> None:
    with pytest.raises(WorkflowError, match="not a stream; pass streams") as caught:
        lines.union(given)

    assert caught.value.place == line_of_call(caught)


def test_a_union_with_a_keyed_stream_is_refused(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match="not a stream"):
        lines.union(lines.key_by("word"))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "books", ["a line"], ms.write.console(), split])
def test_what_is_not_a_source_is_refused(flow: Workflow, given: object) -> None:
    with pytest.raises(
        WorkflowError, match=r"'s' got .*not a source; use a function of ms\.read"
    ) as caught:
        flow.source("s", given)

    assert caught.value.place == line_of_call(caught)


def test_a_dataframe_that_does_not_stream_is_refused_with_the_line_of_the_call(
    flow: Workflow,
) -> None:
    with pytest.raises(WorkflowError, match=r"not streaming; read it with") as caught:
        flow.source("s", Frame(streaming=False))

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("given", [None, "out", ms.read.rate(), print])
def test_what_is_not_a_sink_is_refused(lines: Stream, given: Any) -> None:
    with pytest.raises(
        WorkflowError, match=r"'out' got .*not a sink; use a function of ms\.write"
    ) as caught:
        lines.sink("out", given)

    assert caught.value.place == line_of_call(caught)
