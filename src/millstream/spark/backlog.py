"""The backlog of sources, from the offsets that Spark reports with the progress of the query.

Kafka, ``rate`` and ``replay`` report how far they are; the files of a folder are counted. Of other
sources it is not known.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.flow import sources as flow
from millstream.flow.plan import Plan
from millstream.flow.vertices import SourceVertex
from millstream.log_context import inheriting
from millstream.observe.source_backlog import SourceBacklog
from millstream.spark.bounded_input import sources_of
from millstream.spark.compile import HEARTBEAT, Admission
from millstream.spark.file_backlog import FileBacklog
from millstream.spark.folder import Folder
from millstream.spark.gateway import BROKEN
from millstream.spark.query_log_files import source_folders

log = logging.getLogger("millstream")

_FRESH = 2.0  # seconds: a call into the JVM takes some milliseconds
# Options of Spark's file source by which it does not read every file.
_CHOOSING = {"pathglobfilter", "modifiedbefore", "modifiedafter", "maxfileage"}


class Backlog:
    """Asks Spark for the backlog, not more often than needed."""

    def __init__(
        self,
        query: StreamingQuery,
        plan: Plan,
        branches: Sequence[int],
        logs: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``branches`` are those of the admitted frame, ``logs`` the folders of Spark's sources."""
        self._query = query
        self._vertices = [_named(plan, at) for at in sources_of(plan, branches)]
        self._reported = len(self._vertices) + (HEARTBEAT in branches)
        self._files = [FileBacklog(log) for log in logs]
        self._clock = clock
        self._asked = float("-inf")
        self._known: Sequence[SourceBacklog] = ()

    def __call__(self) -> Sequence[SourceBacklog]:
        """What waits at each source."""
        now = self._clock()
        if now - self._asked >= _FRESH:
            self._asked = now
            try:
                self._known = self._found()
            except BROKEN:
                self._known = ()
        return self._known

    def _found(self) -> Sequence[SourceBacklog]:
        progress = self._query.lastProgress
        reported = () if progress is None else progress.sources
        # Spark reports a stream that is read twice, by a union, as two.
        if len(reported) != self._reported:
            return [
                SourceBacklog(source=name, unit=_unit(source)) for name, source in self._vertices
            ]
        return [
            self._backlog(at, name, source, report)
            for at, ((name, source), report) in enumerate(
                zip(self._vertices, reported, strict=False)
            )
        ]

    def _backlog(self, at: int, name: str, source: flow.Source, report: Any) -> SourceBacklog:
        if isinstance(source, flow.FolderSource):
            return SourceBacklog(
                source=name,
                unit=_unit(source),
                amount=self._unread(at, source, report),
                per_epoch=source.max_files_per_epoch,
            )
        amount = rows_waiting(source, _offset(report.endOffset), _offset(report.latestOffset))
        return SourceBacklog(source=name, amount=amount, per_epoch=_limit(source))

    def _unread(self, at: int, source: flow.FolderSource, report: Any) -> int | None:
        options = source.options if isinstance(source, flow.FilesSource) else ()
        end = _offset(report.endOffset)
        if any(name.lower() in _CHOOSING for name, _ in options) or at >= len(self._files):
            return None
        through = end["logOffset"] if isinstance(end, Mapping) else -1
        return self._files[at].count(report.description, through)


class BacklogWatch:
    """Reports the longest backlog, in epochs beyond the next one, while a run goes on.

    In a thread of its own: no commit waits for an answer of the JVM.
    """

    def __init__(
        self, backlog: Callable[[], Sequence[SourceBacklog]], report: Callable[[float], None]
    ) -> None:
        self._backlog = backlog
        self._report = report
        self._failed = False
        self._closed = threading.Event()

    def start(self) -> None:
        """Report every few seconds until it is closed."""
        # A thread that closes its connection to the JVM when it ends.
        work = inheriting(self._loop)
        InheritableThread(target=work, name="millstream-backlog", daemon=True).start()

    def close(self) -> None:
        """Report no more."""
        self._closed.set()

    def tick(self) -> None:
        """Report it once; none if it cannot be known, as policies must not act on an old one."""
        found = 0.0
        try:
            found = max((source.beyond_next for source in self._backlog()), default=0.0)
        except Exception as problem:  # of an offset that is not as we know it, among others
            if not self._failed:
                log.warning("policies do not see what waits at sources: %s", problem)
            self._failed = True
        self._report(found)

    def _loop(self) -> None:
        while not self._closed.wait(_FRESH):
            self.tick()


def backlog_of(
    spark: SparkSession, query: StreamingQuery, plan: Plan, admitted: Admission, location: str
) -> Backlog:
    """The backlog of a query that has its checkpoint at ``location``."""
    local = Folder(spark, location).local_path
    folders = source_folders(admitted.frame)
    logs = [] if local is None else [f"{local}/sources/{folder}" for folder in folders]
    return Backlog(query, plan, admitted.branches, logs)


def rows_waiting(source: flow.Source, end: Any, latest: Any) -> int | None:
    """The rows between two offsets of a source; None if it does not report them."""
    if end is None or latest is None:
        return None
    match source:
        case flow.KafkaSource():
            behind = (
                max(0, int(newest) - int(end.get(topic, {}).get(partition, newest)))
                for topic, partitions in latest.items()
                for partition, newest in partitions.items()
            )
            return sum(behind)
        case flow.ReplaySource():
            return max(0, int(latest["row"]) - int(end["row"]))
        case flow.RateSource():
            return max(0, (int(latest) - int(end)) * source.rows_per_second)
    return None


def _unit(source: flow.Source) -> str:
    return "files" if isinstance(source, flow.FolderSource) else "rows"


def _limit(source: flow.Source) -> int | None:
    match source:
        case flow.KafkaSource():
            return source.max_rows_per_epoch
        case flow.ReplaySource():
            return source.rows_per_epoch
    return None


def _named(plan: Plan, at: int) -> tuple[str, flow.Source]:
    vertex = plan.vertices[at]
    assert isinstance(vertex, SourceVertex)
    return vertex.name, vertex.source


def _offset(text: Any) -> Any:
    """An offset as Spark reports it: JSON, or its value; None if there is none."""
    if isinstance(text, str):
        return None if text in ("", "null") else json.loads(text)
    return text
