"""Maps that several jobs have on one stream: run once for each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.flow.vertices import JobVertex
from millstream.work.chunk import Chunk
from millstream.work.keyed_values import mapped


class SharedMaps:
    """Caches the results of shared maps for a chunk until the last job has read them."""

    def __init__(self, sharers: Mapping[int, tuple[int, ...]]) -> None:
        self._sharers = sharers
        self._cached: dict[int, tuple[Chunk, Sequence[Any]]] = {}

    def results(self, job: int, vertex: JobVertex, chunk: Chunk) -> Sequence[Any] | None:
        """The results of the job's map for the chunk; None if no other job has this map."""
        sharers = self._sharers.get(job)
        if sharers is None:
            return None
        first, last = sharers[0], sharers[-1]
        of, found = self._cached.get(first, (None, ()))
        if of is not chunk:
            found = mapped(vertex, chunk)
            self._cached[first] = chunk, found
        if job == last:
            del self._cached[first]
        return found
