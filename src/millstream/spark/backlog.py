"""The backlog of sources, as Spark reports it with the progress of the query.

Files and Kafka report what they have and Spark has not read; others do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pyspark.sql.streaming.query import StreamingQuery

from millstream.spark.gateway import BROKEN

_FRESH = 2.0  # seconds: a call into the JVM takes some milliseconds
_UNITS = {
    "numBytesOutstanding": "bytes",
    "numFilesOutstanding": "files",
    "maxOffsetsBehindLatest": "offsets behind, at most",
    "avgOffsetsBehindLatest": "offsets behind, on average",
}


class Backlog:
    """Asks Spark for the backlog, not more often than needed."""

    def __init__(self, query: StreamingQuery, clock: Callable[[], float] = time.monotonic) -> None:
        self._query = query
        self._clock = clock
        self._asked = float("-inf")
        self._known: list[tuple[str, str, float]] = []

    def __call__(self) -> list[tuple[str, str, float]]:
        """Source, unit and amount of what is not read yet."""
        now = self._clock()
        if now - self._asked >= _FRESH:
            self._asked = now
            try:
                self._known = list(self._found())
            except BROKEN:
                self._known = []
        return self._known

    def _found(self) -> Iterator[tuple[str, str, float]]:
        progress = self._query.lastProgress
        for source in () if progress is None else progress.sources:
            for name, text in (source.metrics or {}).items():
                if name in _UNITS:
                    yield source.description, _UNITS[name], float(text)
