"""How bounded input ends when Spark would read on: paced recordings, and windows to be closed.

With windows, one more epoch must follow the last one with data, to close them; a source of
heartbeats makes Spark run it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from millstream.flow.plan import Plan
from millstream.flow.sources import ReplaySource
from millstream.flow.vertices import SourceVertex
from millstream.spark.compile import HEARTBEAT
from millstream.spark.engine import Engine
from millstream.spark.gateway import BROKEN
from millstream.spark.replay import ReplayEnd, replay_end

_POLL = 0.1


@dataclass(frozen=True)
class Ending:
    """The end of each source, in Spark's order; None for one that ends when it is quiet.

    With ``windows``, the heartbeat source follows them.
    """

    ends: tuple[ReplayEnd | None, ...]
    windows: bool

    def has_read(self, sources: Sequence[Any]) -> bool:
        """Whether everything was read, by Spark's reports of an epoch's sources."""
        if self.windows:
            sources = sources[:-1]
        if len(sources) != len(self.ends):
            return self.windows and all(map(_is_quiet, sources))
        pairs = zip(self.ends, sources, strict=True)
        return all(
            end.reached(source.endOffset)
            if end is not None
            else not self.windows or _is_quiet(source)
            for end, source in pairs
        )

    def stop_when_read(self, query: StreamingQuery, engine: Engine) -> None:
        """End the run when all was read and, if there are windows, all of them were closed."""
        with contextlib.suppress(*BROKEN):  # await_termination reports that Spark was lost
            self._stop_when_read(query, engine)

    def _stop_when_read(self, query: StreamingQuery, engine: Engine) -> None:
        while query.isActive:
            last = query.lastProgress
            if last is not None and self.has_read(last.sources):
                if self.windows:
                    engine.close_windows()
                    while query.isActive and not engine.ended.wait(_POLL):
                        pass
                if self.windows or not query.status["isDataAvailable"]:
                    engine.stop(query)
                    return
            time.sleep(_POLL)


def _is_quiet(source: Any) -> bool:
    """Whether a source had nothing new; an epoch may also read files that have no rows."""
    return bool(source.startOffset == source.endOffset)


def ending_of(planned: Plan, branches: Iterable[int], windows: bool) -> Ending:
    """How a run of bounded sources ends."""
    vertices = [planned.vertices[at] for at in sources_of(planned, branches)]
    return Ending(
        tuple(
            replay_end(vertex.source)
            if isinstance(vertex, SourceVertex) and isinstance(vertex.source, ReplaySource)
            else None
            for vertex in vertices
        ),
        windows,
    )


def sources_of(planned: Plan, branches: Iterable[int]) -> list[int]:
    """The sources of the branches, in Spark's order."""
    found: list[int] = []
    for branch in branches:
        if branch == HEARTBEAT:
            continue
        at = branch
        while planned.inputs[at]:
            at = planned.inputs[at][0]
        if at not in found:
            found.append(at)
    return found
