"""Which reducer runs the windows of a job."""

from __future__ import annotations

from typing import Any

from millstream.flow.vertices import JobVertex
from millstream.work.units import Reducing
from millstream.work.windows.forms import form_of
from millstream.work.windows.time_reducing import TimeWindowReducing


def windowed(job: JobVertex, slots: int) -> Reducing[Any]:
    """The running form of a windowed job, with empty state."""
    return TimeWindowReducing(job, form_of(job), slots)
