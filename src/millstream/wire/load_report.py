"""What a node reports of its load with its receipts: totals, and figures of the slots it owns.

Reports are tuples, and travel as plain ones: to unpickle objects takes several times as long, and
there is a report of every node in every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_KEYS = 16
"""So many hot keys of a job are reported at most."""
FIGURE = np.dtype("<f4")
RUN = np.dtype([("start", "<i4"), ("stop", "<i4")])
"""A run of slots."""
NO_WAITS: Mapping[tuple[int, int], float] = {}


class ReportedKey(NamedTuple):
    """A key with a large share of the tuples of a job on one node, and the number of its tuples."""

    key: str
    slot: int
    tuples: int


class ReportedJob(NamedTuple):
    """The figures of a job: a ``FIGURE`` for each slot that the node owns, in slot order.

    No bytes at all stand for zeros.
    """

    job: int
    tuples: bytes = b""
    seconds: bytes = b""
    state_bytes: bytes = b""
    hot_keys: tuple[tuple[str, int, int], ...] = ()  # as in ``ReportedKey``

    @classmethod
    def of(
        cls,
        job: int,
        *,
        tuples: npt.NDArray[np.float64] | None = None,
        seconds: npt.NDArray[np.float64] | None = None,
        state_bytes: npt.NDArray[np.float64] | None = None,
        hot_keys: tuple[ReportedKey, ...] = (),
    ) -> ReportedJob:
        """Pack the figures of a job."""
        return cls(job, _packed(tuples), _packed(seconds), _packed(state_bytes), hot_keys)


def _packed(figures: npt.NDArray[np.float64] | None) -> bytes:
    return b"" if figures is None or not figures.any() else figures.astype(FIGURE).tobytes()


class ReportedLoad(NamedTuple):
    """The load of a node in one epoch and try.

    ``seconds`` is the time since the report of the epoch before, in which the CPU, copies and the
    store took theirs. ``queue_seconds`` is how long feeds waited until the node reduced them, and
    ``waits`` what they waited for: ``(waiting job, job that was reduced meanwhile)``. At most
    ``most_waiting`` feeds waited at once. ``slots`` are those it owns, as rows of ``RUN``.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    copy_seconds: float = 0.0
    store_seconds: float = 0.0
    feed_seconds: float = 0.0
    queue_seconds: float = 0.0
    most_waiting: int = 0
    slots: bytes = b""
    waits: Mapping[tuple[int, int], float] = NO_WAITS
    kind: str = ""
    jobs: tuple[ReportedJob, ...] = ()

    def packed(self) -> tuple[object, ...]:
        """The report as plain values."""
        jobs = tuple((*job[:-1], tuple(map(tuple, job.hot_keys))) for job in self.jobs)
        return (*self[:-1], jobs)

    @classmethod
    def unpacked(cls, values: tuple[Any, ...]) -> ReportedLoad:
        """The report of these values."""
        *others, jobs = values
        return cls._make((*others, tuple(map(ReportedJob._make, jobs))))


def packed_runs(runs: Iterable[range]) -> bytes:
    """Rows of ``RUN``."""
    return np.array([(run.start, run.stop) for run in runs], RUN).tobytes()
