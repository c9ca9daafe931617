"""Short texts for the elements of a workflow, with the names of the user's code."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from millstream.errors import Place
from millstream.flow.functions import ArrowFunction, FrameStep, Function, SqlStep, name_of, place_of
from millstream.flow.joins import JoinSide
from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    JoinReducer,
    ReducerForm,
    StatefulReducer,
    WindowReducer,
)
from millstream.flow.row_reducer import RowReducer
from millstream.flow.sinks import CallbackSink, FileSink, ForeachBatchSink, Sink
from millstream.flow.sources import (
    FilesSource,
    FolderSource,
    RateSource,
    ReplaySource,
    SocketSource,
    Source,
)
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    FusedVertex,
    JobVertex,
    RecordStep,
    SideVertex,
    SinkVertex,
    SourceVertex,
    SplitVertex,
    Vertex,
)
from millstream.state.aggregates.naming import text_of


def step_text(vertex: Vertex) -> str:
    """A vertex in a few words."""
    match vertex:
        case SourceVertex() | FusedVertex():
            return vertex.name
        case JobVertex():
            return f"job {vertex.name}"
        case SinkVertex():
            return f"sink {vertex.name}"
        case JoinSide():
            return f"{vertex.side} side of {vertex.name}"
        case RecordStep():
            return f"{vertex.kind} {function_text(vertex.function)}"
        case BatchStep():
            return f"map {function_text(vertex.function)} (Arrow)"
        case SplitVertex():
            return f"split {function_text(vertex.function)}"
        case BranchVertex():
            return _branch_text(vertex)
        case FrameVertex():
            return frame_text(vertex.step)
        case SideVertex():
            return vertex.side
        case _:
            return "union"


def _branch_text(branch: BranchVertex) -> str:
    (split,) = branch.inputs
    assert isinstance(split, SplitVertex)
    return f"if {'' if branch.holds else 'not '}{function_text(split.function)}"


def frame_text(step: SqlStep | FrameStep) -> str:
    """A step in the JVM."""
    if isinstance(step, FrameStep):
        return f"dataframe {function_text(step.function)}"
    where = "" if step.where is None else f"where {step.where}"
    return " ".join(["sql", *filter(None, (", ".join(step.expressions), where))])


def function_text(function: object) -> str:
    """A function by its name; one without a name by its line."""
    name = name_of(function).rpartition("<locals>.")[2]
    place = place_of(function)
    return f"{name} ({place_text(place)})" if "<lambda>" in name and place else name


def place_text(place: Place) -> str:
    """A line of code, without the folders above its file."""
    return f"{Path(place.file).name}:{place.line}"


def source_text(source: Source) -> str:
    """A source as text."""
    match source:
        case FilesSource():
            return f"{source.format} files in {source.path}"
        case FolderSource():
            return f"{source.kind} files in {source.path}"
        case RateSource():
            return f"by the clock, {source.rows_per_second} a second"
        case SocketSource():
            return f"lines from {source.host}:{source.port}"
        case ReplaySource():
            told = source.recording if isinstance(source.recording, str) else "a table"
            return f"replay of {told}"
        case _:
            return source.kind


def sink_text(sink: Sink) -> str:
    """A sink as text."""
    kind = type(sink).__name__.removesuffix("Sink").lower()
    match sink:
        case FileSink():
            return f"{kind} files in {sink.path}"
        case CallbackSink():
            return f"callback {function_text(sink.function)}"
        case ForeachBatchSink():
            return f"foreach_batch {function_text(sink.function)}"
        case _:
            return kind


def reduce_text(reducer: ReducerForm) -> str:
    """A reducer as text."""
    match reducer:
        case AggregateReducer(aggregates):
            return text_of(aggregates)
        case CombiningReducer(combinable):
            return _combinable_text(combinable)
        case (
            StatefulReducer(function=function, instance=instance)
            | WindowReducer(function=function, instance=instance)
        ):
            if isinstance(instance, RowReducer):
                return instance.title
            return function_text(function if instance is None else type(instance))
        case ArrowReducer(function):
            return f"{function_text(function)} (Arrow)"
        case JoinReducer():
            made = "" if reducer.on_match is None else f", {function_text(reducer.on_match)}"
            return f"{reducer.label}{made}"


def timer_text(reducer: ReducerForm) -> str:
    """The function that timers of a job call, as text."""
    assert isinstance(reducer, StatefulReducer) and reducer.on_timer is not None
    return function_text(reducer.on_timer)


def _combinable_text(combinable: object) -> str:
    if type(combinable).__module__.startswith("millstream."):  # made of four functions
        parts = {f.name: getattr(combinable, f.name) for f in fields(combinable)}  # type: ignore[arg-type]
        return f"combinable, adds with {function_text(parts['add'])}"
    return f"combinable {type(combinable).__qualname__.rpartition('<locals>.')[2]}"


def map_text(map: Function | ArrowFunction | None) -> str:
    """The map of a job."""
    if isinstance(map, ArrowFunction):
        return f"{function_text(map.function)} (Arrow)"
    return "none" if map is None else function_text(map)


def key_text(job: JobVertex) -> str:
    """The key of a job as text."""
    if isinstance(job.key, tuple):
        return f"columns {', '.join(job.key)}"
    if isinstance(job.key, str):
        return f"column {job.key}"
    if job.key is not None:
        return function_text(job.key)
    if isinstance(job.reducer, JoinReducer):
        return "of both sides"
    if isinstance(job.map, ArrowFunction):
        return "column key"
    return "of the pairs" if job.map is not None else "of the pairs, or column key"
