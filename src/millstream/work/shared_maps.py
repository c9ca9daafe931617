"""Maps that several jobs have on one stream: run once for each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.flow.vertices import JobVertex
from millstream.work.chunk import Chunk
from millstream.work.keyed_values import mapped


class SharedMaps:
    """What shared maps gave for a chunk, from the first job that reads it to the last."""

    def __init__(self, sharers: Mapping[int, tuple[int, ...]]) -> None:
        self._sharers = sharers
        self._kept: dict[int, tuple[Chunk, Sequence[Any]]] = {}

    def results(self, job: int, vertex: JobVertex, chunk: Chunk) -> Sequence[Any] | None:
        """What the job's map gives for the chunk; None if no other job has this map."""
        sharers = self._sharers.get(job)
        if sharers is None:
            return None
        first, last = sharers[0], sharers[-1]
        of, found = self._kept.get(first, (None, ()))
        if of is not chunk:
            found = mapped(vertex, chunk)
            self._kept[first] = chunk, found
        if job == last:
            del self._kept[first]
        return found
