"""A windowed job on some nodes that hand units and copies to each other, and the plain answer."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import Place
from millstream.flow.reducers import AggregateReducer, CombiningReducer, reducer_of
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, SessionWindow, TimeWindow, Window, Windowing
from millstream.ring.keys import encode_keys
from millstream.state.blocks import KEY, PANE, SLOT, TIME, place_rows
from millstream.state.records import decode_records
from millstream.times import BEGINNING
from millstream.work.job_clock import JobClock, Tally, summed
from millstream.work.keyed_batches import Pairs
from millstream.work.late_outputs import results_in, unpacked
from millstream.work.packers.packer import packer_for
from millstream.work.packers.placing import COUNT, LAST, START
from millstream.work.packers.value_lists import TIMES, encode_lists
from millstream.work.unit import UnitContext
from millstream.work.windows.choice import window_operator

SLOTS = 8
Row = tuple[Any, int, Any]
"""Key, event time, value."""


def job_of(reduce: object, *windows: Window, **options: Any) -> JobVertex:
    """A windowed job called "job"."""
    windowing = Windowing(tuple(windows), **options)
    return JobVertex(
        Place("here.py", 1),
        name="job",
        reducer=reducer_of(reduce, "job", windowed=True),
        windowing=windowing,
    )


def block_of(job: JobVertex, rows: Sequence[Row], folding: bool) -> list[pa.RecordBatch]:
    """The block of one map task with these rows; packed in the plainest way."""
    if not rows:
        return []
    groups, placed = _grouped(job, rows, folding)
    keys = encode_keys([group[0][0] for group in groups])
    columns = _columns(job, groups)
    slots, order = place_rows(keys, SLOTS)
    fields = [pa.field(KEY, keys.type), pa.field(SLOT, pa.int32())]
    fields += [pa.field(name, pa.int64()) for name in placed]
    arrays = [
        keys,
        pa.array(slots, pa.int32()),
        *(pa.array(p, pa.int64()) for p in placed.values()),
    ]
    batch = pa.RecordBatch.from_arrays(
        [*arrays, *(array for _, array in columns)],
        schema=pa.schema([*fields, *(field for field, _ in columns)]),
    )
    return [batch.take(pa.array(order))]


def _grouped(
    job: JobVertex, rows: Sequence[Row], folding: bool
) -> tuple[list[list[Row]], dict[str, list[int]]]:
    """The rows of a block, each made of some values, and what they say of time and number."""
    assert job.windowing is not None
    window = job.windowing.windows[0]
    groups: dict[Any, list[Row]] = defaultdict(list)
    if isinstance(window, SessionWindow):
        bursts = _bursts(rows, window.gap)
        times = [[time for _, time, _ in burst] for burst in bursts]
        return bursts, {START: list(map(min, times)), LAST: list(map(max, times))}
    for at, row in enumerate(rows):
        alone = () if folding or not _folds(job) else (at,)
        if isinstance(window, TimeWindow):
            pane = job.windowing.pane
            groups[(row[0], row[1] // pane * pane, *alone)].append(row)
        elif isinstance(window, CountWindow) and _folds(job):
            groups[at].append(row)
        else:
            groups[row[0]].append(row)
    made = list(groups.values())
    if isinstance(window, TimeWindow):
        return made, {PANE: [group[1] for group in groups]}
    newest = [max(time for _, time, _ in group) for group in made]
    if isinstance(window, CountWindow):
        return made, {LAST: newest} if _folds(job) else {}
    return made, {COUNT: list(map(len, made)), LAST: newest}


def _bursts(rows: Sequence[Row], gap: int) -> list[list[Row]]:
    """The values of a key that follow each other with less than a gap between, as they came."""
    found: list[list[Row]] = []
    for key in dict.fromkeys(key for key, _, _ in rows):
        mine = [at for at, row in enumerate(rows) if row[0] == key]
        mine.sort(key=lambda at: rows[at][1])
        burst = [mine[0]]
        for before, at in pairwise(mine):
            if rows[at][1] - rows[before][1] >= gap:
                found.append([rows[at] for at in sorted(burst)])
                burst = []
            burst.append(at)
        found.append([rows[at] for at in sorted(burst)])
    return found


def packed(job: JobVertex, rows: Sequence[Row], folding: bool) -> list[pa.RecordBatch]:
    """The block of one map task with these rows, as map tasks pack it."""
    packer = packer_for(job, SLOTS, folding=folding)
    for at in range(0, len(rows), 3):
        part = rows[at : at + 3]
        times = np.array([time for _, time, _ in part], np.int64)
        packer.add(Pairs([(key, value) for key, _, value in part], False), times)
    block = packer.flush()
    return [] if block is None else [block]


def _folds(job: JobVertex) -> bool:
    return isinstance(job.reducer, AggregateReducer | CombiningReducer)


def _columns(job: JobVertex, groups: list[list[Row]]) -> list[tuple[pa.Field, pa.Array]]:
    reducer = job.reducer
    if isinstance(reducer, AggregateReducer):
        flat = [row for group in groups for row in group]
        at = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        values = {"value": pa.array([value for _, _, value in flat])}
        times = pa.array([time for _, time, _ in flat]).cast(pa.timestamp("us", "UTC"))
        folded = reducer.aggregates.fold(values, times, at, len(groups))
        return list(zip(folded.schema, folded.columns, strict=True))
    if isinstance(reducer, CombiningReducer):
        made = []
        for group in groups:
            accumulator = reducer.combinable.zero()
            for _, _, value in group:
                accumulator = reducer.combinable.add(accumulator, value)
            made.append([accumulator])
        return [encode_lists(job, made)]
    times_column = pa.array([[time for _, time, _ in group] for group in groups])
    return [
        encode_lists(job, [[value for _, _, value in group] for group in groups]),
        (pa.field(TIMES, times_column.type), times_column),
    ]


@dataclass
class Rig:
    """A job on nodes that own runs of slots; every epoch is copied, cut, merged or moved."""

    job: JobVertex
    rng: random.Random
    nodes: int = 2
    epoch: int = 0
    watermark: int = BEGINNING
    results: list[tuple[Any, ...]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    late: list[tuple[Any, ...]] = field(default_factory=list)
    counted: list[Tally] = field(default_factory=list)
    closed: int = BEGINNING
    pack: Callable[[JobVertex, Sequence[Row], bool], list[pa.RecordBatch]] = block_of

    def __post_init__(self) -> None:
        self.owners = [self._new() for _ in range(self.nodes)]

    def _new(self) -> Any:
        return window_operator(self.job, SLOTS)

    def run(
        self, rows: Sequence[Row], watermark: int, folding: bool = True, early: bool = False
    ) -> list[Row]:
        """One epoch; now and then an attempt fails, or a node is replaced by a copy of it.

        Gives the rows in the order in which nodes get them.
        """
        clock = JobClock(self.watermark, max(self.watermark, watermark), {}, folding, early)
        self.closed, self.watermark = clock.closed, clock.watermark
        tasks = [list(rows[i::2]) for i in range(2)] if self.rng.random() < 0.5 else [list(rows)]
        blocks = [b for task in tasks for b in self.pack(self.job, task, folding)]
        for at, slots in enumerate(self._runs()):
            unit = UnitContext(slots, 1000 + self.epoch, None, True, clock, self.epoch)
            mine = [b.filter(pa.array(_within(b, slots))) for b in blocks]
            mine = [b for b in mine if b.num_rows]
            owner = self.owners[at]
            if self.rng.random() < 0.3:
                owner.reduce(mine, unit)  # an attempt that comes to nothing
            reduced = owner.reduce(mine, unit)
            assert len({str(batch.schema) for batch in reduced.outputs}) <= 1
            self._take(results_in(reduced.outputs))
            late = [batch for output in reduced.outputs for batch in unpacked(output)[1]]
            self.late += [record for batch in late for record in decode_records(batch)]
            self.counted = list(summed([*self.counted, *reduced.tallies]))
            self._seal(at, reduced.fragment, slots)
        self.epoch += 1
        return [row for task in tasks for row in task]

    def _runs(self) -> list[range]:
        cut = SLOTS // self.nodes
        return [range(at * cut, (at + 1) * cut) for at in range(self.nodes)]

    def _seal(self, at: int, fragment: Any, slots: range) -> None:
        owner = self.owners[at]
        fate = self.rng.random()
        if fate < 0.6:
            owner.state.apply(fragment)
            return
        if fate < 0.8:  # a copy takes over: it had a snapshot, and gets the delta twice
            copy = self._new()
            copy.state.apply(copy.state.decode(owner.state.encode(owner.state.snapshot(slots))))
            delta = copy.state.decode(owner.state.encode(owner.state.part(fragment, slots)))
            copy.state.apply(copy.state.merge([delta, delta]))
            self.owners[at] = copy
            return
        mask = np.zeros(SLOTS, bool)  # in two halves
        mask[slots.start : slots.start + len(slots) // 2] = True
        owner.state.apply(fragment, mask)
        owner.state.apply(fragment, ~mask)

    def _take(self, outputs: Iterable[pa.RecordBatch]) -> None:
        for batch in outputs:
            names = [n for n in batch.schema.names if not n.startswith("millstream.")]
            for record in decode_records(batch.select(names)):
                self.results.append(tuple(record))
            self.times += batch.column(TIME).to_pylist()


def _within(block: pa.RecordBatch, slots: range) -> Any:
    at = block.column(SLOT).to_numpy()
    return (at >= slots.start) & (at < slots.stop)


def expected(
    epochs: Sequence[tuple[Sequence[Row], int]],
    window: TimeWindow,
    reduce: Callable[[list[Row]], Any],
) -> dict[tuple[Any, int, int], Any]:
    """The plain answer: every window of every key, with the rows that came before it closed."""
    closes: dict[tuple[Any, int, int], list[Row]] = defaultdict(list)
    watermark = BEGINNING
    for rows, now in epochs:
        for row in rows:
            first = (row[1] - window.size) // window.slide * window.slide + window.slide
            for start in range(first, row[1] + 1, window.slide):
                if start + window.size > watermark:
                    closes[row[0], start, start + window.size].append(row)
        watermark = max(watermark, now)
    return {at: reduce(rows) for at, rows in closes.items() if at[2] <= watermark}
