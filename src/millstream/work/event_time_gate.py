"""Event time on the map side: the time of each keyed value, and whether windows include it.

A value that is late, too far ahead or without a time goes to a side output of its job, as a record
``(key, value, time)``; all are counted, for the watermark of later epochs. Whether a session
includes a value behind the watermark, its operator decides: here it is only separated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.functions import ArrowFunction
from millstream.flow.vertices import JobVertex, Side
from millstream.ring.key_types import INSTANT
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.blocks import EVENT_TIME, KEY, TIME, WINDOW
from millstream.times import instant
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, record_error
from millstream.work.job_clock import JobClock, Tally
from millstream.work.keyed_batches import KeyedBatch, Pairs, Timed
from millstream.work.keyed_values import encode_times


@dataclass(frozen=True, slots=True)
class MaybeLate:
    """Values that an open session may include; ``records`` are for those who read late values."""

    values: Timed
    records: Chunk | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The values that windows include, those of side outputs that are read, and maybe late ones."""

    taken: Timed
    sides: dict[Side, Chunk]
    maybe_late: MaybeLate | None = None


def times_of(
    job: JobVertex, values: Pairs | KeyedBatch, time: int | None
) -> tuple[Ints, Bools | None] | None:
    """The time of each value, and which have none; None if no value has any.

    ``time`` is the time of values without one of their own.
    """
    found = None
    if isinstance(values, KeyedBatch):
        found = values.times
    elif values.timed:
        found = encode_times(job, [item[2] for item in values.items])
    if found is None:
        return None if time is None else (np.full(len(values), time, np.int64), None)
    missing = None
    if found.null_count:
        missing = found.is_null().to_numpy(zero_copy_only=False)
        found = found.fill_null(0)
    return found.view(pa.int64()).to_numpy(), missing


class Gate:
    """Admits the values of one windowed job in one map task to its windows."""

    def __init__(
        self, job: JobVertex, clock: JobClock, now: int, sides: Collection[Side] = ()
    ) -> None:
        assert job.windowing is not None
        self._job = job
        self._clock = clock
        self._now = now
        self._read = frozenset(sides)
        self._by_arrival = job.windowing.processing_time
        self._open = job.windowing.earliest_on_time(clock.closed)
        first, self._latest = job.windowing.representable_range
        self._is_merging = job.windowing.is_merging
        self._earliest = first if self._is_merging else self._open
        self._tallies: dict[int, Tally] = {}

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """The counts, one tally for each origin."""
        return tuple(self._tallies[origin] for origin in sorted(self._tallies))

    def admit(
        self, values: Pairs | KeyedBatch, origin: int | None, time: int | None = None
    ) -> Admitted:
        """Take some values of one origin; ``time`` is the time of values without one.

        Results of windows have no origin here: the watermark of those windows applies to them.
        """
        self._check_names(values)
        times, untimed = self._times(values, time)
        rejected = {} if self._by_arrival else self._rejected(times, untimed, origin)
        taken = Timed(values, times)
        if rejected:
            kept = ~np.logical_or.reduce(list(rejected.values()))
            taken = taken.filter(kept)
        taken, maybe_late = self._separated(taken)
        self._count(origin, taken.times, rejected)
        sides = {
            side: _side_chunk(values, times, mask, side)
            for side, mask in rejected.items()
            if side in self._read
        }
        return Admitted(taken, sides, maybe_late)

    def _separated(self, taken: Timed) -> tuple[Timed, MaybeLate | None]:
        """Values that are on time, and those that only an open session may include."""
        times = taken.times
        if not self._is_merging or not len(times) or times.min() >= self._open:
            return taken, None
        mask = times < self._open
        records = None
        if "late" in self._read:
            records = _side_chunk(taken.values, times, mask, "late")
        maybe_late = MaybeLate(taken.filter(mask), records)
        return taken.filter(~mask), maybe_late

    def _times(self, values: Pairs | KeyedBatch, time: int | None) -> tuple[Ints, Bools | None]:
        """The time of each value, and which have none."""
        if self._by_arrival:
            return np.full(len(values), self._now, np.int64), None
        found = times_of(self._job, values, time)
        if found is None:
            raise _no_time(self._job)
        return found

    def _rejected(
        self, times: Ints, untimed: Bools | None, origin: int | None
    ) -> dict[Side, Bools]:
        """Which values go to which side output; empty if all are admitted."""
        limit = self._latest
        if origin is not None:
            limit = min(self._clock.limits.get(origin, limit), limit)
        if untimed is None and (
            not len(times) or (times.max() <= limit and times.min() >= self._earliest)
        ):
            return {}
        late = times < self._earliest
        ahead = (times > limit) & ~late
        found: dict[Side, Bools] = {"late": late, "ahead": ahead}
        if untimed is not None:
            found = {"late": late & ~untimed, "ahead": ahead & ~untimed, "untimed": untimed}
        return {side: mask for side, mask in found.items() if mask.any()}

    def _count(self, origin: int | None, taken: Ints, rejected: dict[Side, Bools]) -> None:
        if origin is None or not (len(taken) or rejected):
            return
        tally = Tally(origin, **{side: int(mask.sum()) for side, mask in rejected.items()})
        if len(taken):
            tally += Tally(origin, rows=len(taken), latest=int(taken.max()))
        known = self._tallies.get(origin)
        self._tallies[origin] = tally if known is None else known + tally

    def _check_names(self, values: Pairs | KeyedBatch) -> None:
        if self._read and isinstance(values, KeyedBatch) and EVENT_TIME in values.values:
            raise record_error(
                f"input of job {self._job.name!r}",
                None,
                f"has a value column {EVENT_TIME!r}, the name of the column with the event time in "
                "its late, ahead and untimed streams",
                "rename the column in a map",
            )


def runs_of(output: pa.RecordBatch, *, timed: bool) -> Iterator[tuple[int, Chunk]]:
    """The results of each window in turn: the number of the window, and a chunk of its results.

    Chunks have a time only if they are ``timed``: results of sessions have different times, and
    each would be a chunk.
    """
    if WINDOW not in output.schema.names:  # of a join, whose rows have a time column
        yield 0, Chunk(batch=output)
        return
    names = [name for name in output.schema.names if name not in (WINDOW, TIME)]
    rows = output.select(names)
    windows = output.column(WINDOW).to_numpy()
    times = output.column(TIME).to_numpy()
    changes = windows[1:] != windows[:-1]
    if timed:
        changes |= times[1:] != times[:-1]
    cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(times)]
    for start, stop in pairwise(cuts):
        if stop > start:
            time = int(times[start]) if timed else None
            yield int(windows[start]), Chunk(batch=rows.slice(start, stop - start), time=time)


def _side_chunk(values: Pairs | KeyedBatch, times: Ints, mask: Bools, side: Side) -> Chunk:
    found = values.filter(mask)
    if isinstance(found, Pairs):
        return Chunk(records=_triples(found, times[mask], side))
    stamps = pa.array(times[mask]).view(INSTANT)
    columns: dict[str, Any] = {
        KEY: found.keys,
        **{name: column for name, column in found.values.items() if name != KEY},
        EVENT_TIME: pa.nulls(len(stamps), INSTANT) if side == "untimed" else stamps,
    }
    return Chunk(batch=pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def _triples(pairs: Pairs, times: Ints, side: Side) -> list[tuple[Any, ...]]:
    if side == "untimed":
        return [(item[0], item[1], None) for item in pairs.items]
    if pairs.timed:  # as given: a datetime cannot represent every number of seconds
        return list(pairs.items)
    return [
        (key, value, instant(time))
        for (key, value), time in zip(pairs.items, times.tolist(), strict=True)
    ]


def _no_time(job: JobVertex) -> RecordError:
    function = job.map.function if isinstance(job.map, ArrowFunction) else job.map
    return record_error(
        f"{'input' if job.map is None else 'map'} of job {job.name!r}",
        function,
        "gave values without an event time, which windows need",
        "yield (key, value, timestamp), name time=, or ask for time=ms.processing_time",
    )
