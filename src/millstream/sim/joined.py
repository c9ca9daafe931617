"""Simulated workloads with joins: by distance or by window, inner and outer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from millstream.flow.reducers import JoinKind, JoinReducer
from millstream.flow.streams import Stream
from millstream.flow.windows import sliding
from millstream.sim.event_time import EventTimeAnswer, Job
from millstream.sim.keyed_windows import Join, numbered
from millstream.sim.two_sources import LEFT, TwoSources, letter
from millstream.sim.workload import SECOND, Answer, Pair, Workload

_WITHIN, _TUMBLING, _SLIDING = 2, 4, (6, 2)


def by_letter(record: Pair) -> tuple[str, int, datetime | None]:
    """A record's letter, value and time."""
    key, (_, value, time) = record
    return key[0], value, time


_KINDS: dict[str, tuple[int, int | None, bool]] = {
    "near": (_WITHIN, None, False),
    "near-or-alone": (_WITHIN, None, True),
    "together": (_TUMBLING, _TUMBLING, False),
    "together-or-alone": (*_SLIDING, True),
}
"""How far apart values may be, or the size and slide of windows; and whether joins are outer."""


class _Joined(TwoSources):
    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds
        super().__init__()

    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        one, other = left.map(by_letter), right.map(by_letter)
        return {kind: _joined(one, other, kind) for kind in self._kinds}

    def answer(self, slots: int) -> Answer:
        jobs = []
        for kind in self._kinds:
            size, slide, outer = _KINDS[kind]
            reducer = self.jobs[self.at[kind]].reducer
            assert isinstance(reducer, JoinReducer)
            step = None if slide is None else slide * SECOND
            join = Join(self.sources[LEFT], size * SECOND, step, outer, reducer.pane)
            jobs.append(Job(self.at[kind], self.origins, [join], tuple, key=letter))
        return EventTimeAnswer(tuple(jobs), self.read, slots)

    def comparable(self, state: Any) -> Any:
        return tuple(sorted(numbered(state)))


def _joined(one: Stream, other: Stream, kind: str) -> Stream:
    size, slide, outer = _KINDS[kind]
    length = timedelta(seconds=size)
    how: JoinKind = "left" if outer else "inner"
    if slide is None:
        return one.join(other, kind, how=how, within=length)
    return one.join(other, kind, how=how, window=sliding(length, timedelta(seconds=slide)))


NEAR: Workload = _Joined("near", "near-or-alone")
TOGETHER: Workload = _Joined("together", "together-or-alone")
