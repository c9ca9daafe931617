"""Pushing chunks through the fused steps behind a stream, to jobs, sinks and frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.flow.joins import JoinSide
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    JobVertex,
    RecordStep,
    SideVertex,
    SplitVertex,
)
from millstream.work.chunk import Chunk
from millstream.work.join_sides import run_side
from millstream.work.program import FRAME, SINK, Program
from millstream.work.steps import run_split, run_step


class Outlet(Protocol):
    """Where chunks leave Python, behind the fused steps."""

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        """Take a chunk for a sink."""

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        """Take a chunk for a step in the JVM."""


ToJob = Callable[[int, Chunk], None]
"""Takes a chunk for a job."""


def push(program: Program, at: int, chunk: Chunk, to_job: ToJob, outlet: Outlet) -> None:
    """Hand a chunk of the stream at ``at`` to every vertex that reads it.

    The side outputs of a job are streams of their own: its results do not go there.
    """
    if not len(chunk):
        return
    for consumer in program.consumers[at]:
        element = program.elements[consumer]
        if isinstance(element, JobVertex):
            to_job(consumer, chunk)
        elif isinstance(element, JoinSide):
            for result in run_side(element, chunk):
                push(program, consumer, result, to_job, outlet)
        elif isinstance(element, RecordStep | BatchStep):
            for result in run_step(element, chunk):
                push(program, consumer, result, to_job, outlet)
        elif isinstance(element, SplitVertex):
            held, others = run_split(element, chunk)
            for branch in program.consumers[consumer]:
                side = program.elements[branch]
                assert isinstance(side, BranchVertex)
                push(program, branch, held if side.holds else others, to_job, outlet)
        elif element == SINK:
            outlet.to_sink(consumer, chunk)
        elif element == FRAME:
            outlet.to_frame(consumer, chunk)
        elif not isinstance(element, SideVertex):
            push(program, consumer, chunk, to_job, outlet)
