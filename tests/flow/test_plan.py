from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.plan import Plan, plan
from millstream.flow.streams import Stream
from millstream.flow.vertices import (
    FrameVertex,
    JobVertex,
    SinkVertex,
    SourceVertex,
    UnionVertex,
    Vertex,
)
from millstream.flow.workflow import Workflow
from tests.flow.places import next_line


def same(record: Any) -> Any:
    return record


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


def job(stream: Stream, name: str) -> Stream:
    return stream.map_reduce(name, reduce=ms.count())


def title(vertex: Vertex) -> str:
    return getattr(vertex, "name", None) or type(vertex).__name__.removesuffix("Vertex").lower()


def titles(planned: Plan) -> list[str]:
    return [title(vertex) for vertex in planned.vertices]


def levels(planned: Plan) -> dict[str, int]:
    return dict(zip(titles(planned), planned.levels, strict=True))


def consumers(planned: Plan) -> dict[str, list[str]]:
    names = titles(planned)
    readers = zip(names, planned.consumers, strict=True)
    return {name: [names[at] for at in found] for name, found in readers}


def inputs(planned: Plan) -> dict[str, list[str]]:
    names = titles(planned)
    sources = zip(names, planned.inputs, strict=True)
    return {name: [names[at] for at in found] for name, found in sources}


def assert_in_order(planned: Plan) -> None:
    for at, sources in enumerate(planned.inputs):
        assert all(source < at for source in sources)


def test_a_chain_is_planned_from_source_to_sink(flow: Workflow) -> None:
    job(job(flow.source("in", ms.read.rate()), "a"), "b").sink("out", ms.write.console())

    planned = plan(flow)

    assert planned.name == "w"
    assert titles(planned) == ["in", "a", "b", "out"]
    assert inputs(planned) == {"in": [], "a": ["in"], "b": ["a"], "out": ["b"]}
    assert consumers(planned) == {"in": ["a"], "a": ["b"], "b": ["out"], "out": []}
    assert levels(planned) == {"in": 0, "a": 1, "b": 2, "out": 2}


def test_steps_between_jobs_do_not_raise_the_level(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate()).map(same).filter(same)
    job(stream, "a").flat_map(same).sink("out", ms.write.console())

    assert plan(flow).levels == (0, 0, 0, 1, 1, 1)


def test_a_stream_with_several_readers_is_planned_once(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    counted = job(stream, "a")
    counted.sink("first", ms.write.console())
    counted.sink("second", ms.write.console())
    job(stream, "b")

    planned = plan(flow)

    assert sorted(titles(planned)) == ["a", "b", "first", "in", "second"]
    assert consumers(planned)["in"] == ["a", "b"]
    assert consumers(planned)["a"] == ["first", "second"]
    assert_in_order(planned)


def test_a_union_reads_all_its_streams_in_the_order_given(flow: Workflow) -> None:
    streams = [flow.source(name, ms.read.rate()) for name in ("x", "y", "z")]
    job(streams[1].union(streams[0], streams[2]), "a")

    planned = plan(flow)

    assert inputs(planned)["union"] == ["y", "x", "z"]
    assert inputs(planned)["a"] == ["union"]
    assert levels(planned) == {"x": 0, "y": 0, "z": 0, "union": 0, "a": 1}
    assert_in_order(planned)


def test_a_stream_in_a_union_twice_is_read_twice(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    job(stream.union(stream), "a")

    planned = plan(flow)

    assert inputs(planned)["union"] == ["in", "in"]
    assert consumers(planned)["in"] == ["union", "union"]


def test_a_diamond_joins_at_the_level_of_its_longest_side(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    long = job(job(stream, "a"), "b")
    short = job(stream, "c")
    job(long.union(short), "d").sink("out", ms.write.console())

    planned = plan(flow)

    assert levels(planned) == {"in": 0, "a": 1, "b": 2, "c": 1, "union": 2, "d": 3, "out": 3}
    assert consumers(planned)["in"] == ["a", "c"]
    assert_in_order(planned)


def test_an_edge_may_skip_levels(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    last = job(job(job(stream, "a"), "b").union(stream), "c")
    last.sink("late", ms.write.console())
    stream.sink("early", ms.write.console())

    planned = plan(flow)

    assert levels(planned) == {
        "in": 0,
        "a": 1,
        "b": 2,
        "union": 2,
        "c": 3,
        "late": 3,
        "early": 0,
    }
    assert consumers(planned)["in"] == ["a", "union", "early"]
    assert_in_order(planned)


def test_a_name_may_be_used_before_its_job_exists(flow: Workflow) -> None:
    job(flow.stream("a"), "b").sink("out", ms.write.console())
    job(flow.source("in", ms.read.rate()), "a")

    planned = plan(flow)

    assert titles(planned) == ["in", "a", "b", "out"]
    assert levels(planned)["b"] == 2


def test_a_name_and_a_stream_are_the_same_vertex(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    job(flow.stream("in").union(stream), "a")

    assert inputs(plan(flow))["union"] == ["in", "in"]


def test_the_same_workflow_gives_the_same_order_every_time() -> None:
    def build() -> list[str]:
        flow = Workflow("w")
        stream = flow.source("in", ms.read.rate())
        for name in "abcde":
            job(stream, name).sink(f"out-{name}", ms.write.console())
        return titles(plan(flow))

    assert build() == build() == build()


def test_streams_that_nothing_reads_are_left_out(flow: Workflow) -> None:
    job(flow.source("in", ms.read.rate()).map(same), "a").map(same)
    flow.source("unused", ms.read.rate())

    assert titles(plan(flow)) == ["in", "recordstep", "a"]


def test_a_sink_alone_is_a_workflow(flow: Workflow) -> None:
    flow.source("in", ms.read.rate()).sink("out", ms.write.console())

    planned = plan(flow)

    assert planned.levels == (0, 0)
    assert planned.jobs == []


def test_jobs_sinks_and_kinds_are_listed_with_their_positions(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    job(stream.union(stream), "a").sink("out", ms.write.console())

    planned = plan(flow)

    assert [(at, vertex.name) for at, vertex in planned.jobs] == [(2, "a")]
    assert [(at, vertex.name) for at, vertex in planned.sinks] == [(3, "out")]
    assert [at for at, _ in planned.of_kind(SourceVertex)] == [0]
    assert [at for at, _ in planned.of_kind(UnionVertex)] == [1]


def test_only_jvm_steps_straight_behind_sources_stay_in_their_frame(flow: Workflow) -> None:
    ahead = flow.source("in", ms.read.rate()).map(ms.sql("value"))
    behind = ahead.map(same).map(ms.sql("value"))
    joined = ahead.union(behind).map(ms.sql("value"))
    job(joined, "a").map(ms.sql("value")).sink("out", ms.write.console())

    planned = plan(flow)
    staying = {
        title(vertex)
        for vertex, stays in zip(planned.vertices, planned.in_source_frame, strict=True)
        if stays
    }
    frames = [planned.in_source_frame[at] for at, _ in planned.of_kind(FrameVertex)]

    assert staying == {"in", "frame"}
    assert frames == [True, False, False, False]


def test_a_path_may_be_very_long(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    for _ in range(1500):
        stream = stream.union()
    job(stream, "a")

    planned = plan(flow)

    assert len(planned.vertices) == 1502
    assert planned.levels[-1] == 1
    assert isinstance(planned.vertices[-1], JobVertex)


# -- what cannot be planned ----------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_line_that_uses_it(flow: Workflow) -> None:
    flow.source("lines", ms.read.rate()).sink("out", ms.write.console())
    place = next_line()
    nope = flow.stream("nope")
    job(nope, "a")

    with pytest.raises(WorkflowError, match="no source or job called 'nope'") as caught:
        plan(flow)

    assert caught.value.fix == "use one of a, lines"
    assert caught.value.place == place


def test_an_unknown_name_in_a_workflow_without_any_is_to_be_defined(flow: Workflow) -> None:
    place = next_line()
    flow.stream("nope").sink("out", ms.write.console())

    with pytest.raises(WorkflowError, match="called 'nope'; define it") as caught:
        plan(flow)

    assert caught.value.place == place


def test_a_sink_cannot_be_read(flow: Workflow) -> None:
    flow.source("lines", ms.read.rate()).sink("out", ms.write.console())
    job(flow.stream("out"), "a")

    with pytest.raises(WorkflowError, match="no source or job called 'out'; use one of a, lines"):
        plan(flow)


def test_a_job_that_reads_itself_is_a_cycle(flow: Workflow) -> None:
    place = next_line()
    own = flow.stream("a")
    job(own, "a")

    with pytest.raises(WorkflowError, match="cycle: a → a;") as caught:
        plan(flow)

    assert caught.value.place == place


def test_a_cycle_is_refused_with_its_jobs_in_the_order_of_the_data(flow: Workflow) -> None:
    place = next_line()
    late = flow.stream("c")
    first = job(flow.source("in", ms.read.rate()).union(late), "a")
    job(job(first.map(same), "b"), "c").sink("out", ms.write.console())

    with pytest.raises(WorkflowError, match="cycle: a → b → c → a;") as caught:
        plan(flow)

    assert "change flow.stream('c')" in caught.value.fix
    assert caught.value.place == place


def test_a_cycle_is_found_from_a_sink_outside_of_it(flow: Workflow) -> None:
    place = next_line()
    back = flow.stream("a").map(same)
    back.sink("out", ms.write.console())
    job(back, "a")

    with pytest.raises(WorkflowError, match="cycle: a → a;") as caught:
        plan(flow)

    assert caught.value.place == place


def test_a_workflow_without_job_and_sink_is_refused_with_the_line_that_made_it() -> None:
    place = next_line()
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map(same)

    with pytest.raises(WorkflowError, match="neither a job nor a sink; add") as caught:
        plan(flow)

    assert caught.value.place == place


def test_a_plan_is_made_of_the_workflow_as_it_is_now(flow: Workflow) -> None:
    stream = flow.source("in", ms.read.rate())
    stream.sink("out", ms.write.console())
    before = plan(flow)
    job(stream, "a")

    assert len(before.vertices) == 2
    assert len(plan(flow).vertices) == 3
    assert isinstance(plan(flow).vertices[1], SinkVertex)
