"""Reducers that are classes: opened once per node and job, and closed with the node."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping

from millstream.flow.reducer_class import Reducer, ReducerContext
from millstream.flow.vertices import JobVertex
from millstream.work.failures import calling


def _names(key: object) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else ()


class OpenReducers:
    """The reducers of one node that are open."""

    def __init__(self, node: str, jobs: Mapping[int, JobVertex], slots: int) -> None:
        self._node = node
        self._jobs = jobs
        self._slots = slots
        self._open: dict[int, Reducer] = {}

    def open(self, at: int) -> None:
        """Open the reducer of a job that is about to reduce, unless it is open or a function."""
        if at in self._open:
            return
        job = self._jobs[at]
        instance = getattr(job.reducer, "instance", None)
        if instance is None:
            return
        with calling(f"open of the reducer of job {job.name!r}", instance.open):
            instance.open(
                ReducerContext(
                    job=job.name,
                    node=self._node,
                    slots=self._slots,
                    key_columns=(job.key,) if isinstance(job.key, str) else _names(job.key),
                )
            )
        self._open[at] = instance

    def close(self) -> None:
        """Close what is open; an error is printed, because nobody waits for a node that ends."""
        while self._open:
            at, instance = self._open.popitem()
            try:
                instance.close()
            except Exception:
                print(f"close of the reducer of job {self._jobs[at].name!r}:", file=sys.stderr)
                traceback.print_exc()
