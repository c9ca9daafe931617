"""What a node reports of its load with its receipts: totals, and figures of the slots it owns.

Reports travel as plain values: to unpickle objects takes several times as long, and there is a
report of every node in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
MOST_KEYS = 16
"""So many hot keys of a job are reported at most."""
FIGURE = np.dtype("<f4")


class ReportedKey(NamedTuple):
    """A key with a large share of the tuples of a job on one node, and the number of its tuples."""

    key: str
    slot: int
    tuples: int


@dataclass(frozen=True)
class ReportedJob:
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


@dataclass(frozen=True, kw_only=True)
class ReportedLoad:
    """The load of a node in one epoch and try.

    ``seconds`` is the time since the report of the epoch before, in which the CPU, copies and the
    store took theirs. ``queue_seconds`` is how long feeds waited until the node reduced them, and
    ``waits`` what they waited for: ``(waiting job, job that was reduced meanwhile)``. At most
    ``most_waiting`` feeds waited at once.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    copy_seconds: float = 0.0
    store_seconds: float = 0.0
    feed_seconds: float = 0.0
    queue_seconds: float = 0.0
    most_waiting: int = 0
    slots: tuple[range, ...] = ()
    jobs: tuple[ReportedJob, ...] = ()
    waits: Mapping[tuple[int, int], float] = field(default_factory=dict)
    kind: str = ""

    def packed(self) -> tuple[object, ...]:
        """The report as plain values."""
        slots = tuple((run.start, run.stop) for run in self.slots)
        jobs = tuple(
            tuple((vars(job) | {"hot_keys": tuple(map(tuple, job.hot_keys))}).values())
            for job in self.jobs
        )
        return tuple((vars(self) | {"slots": slots, "jobs": jobs}).values())

    @classmethod
    def unpacked(cls, values: tuple[Any, ...]) -> ReportedLoad:
        """The report of these values."""
        load = rebuilt(cls, values)
        fields = load.__dict__
        fields["slots"] = tuple([range(start, stop) for start, stop in fields["slots"]])
        fields["jobs"] = tuple([rebuilt(ReportedJob, job) for job in fields["jobs"]])
        return load


def rebuilt(kind: type[T], values: tuple[Any, ...]) -> T:
    """An object of a dataclass with these values of its fields, in their order.

    The initialiser of a frozen dataclass takes several times as long, and nodes send thousands of
    reports in every epoch.
    """
    made = object.__new__(kind)
    names: Any = kind.__dict__["__dataclass_fields__"]
    made.__dict__.update(zip(names, values, strict=True))
    return made
