"""What sliding windows cost: recomputed, from their values, and from shared panes.

The two experiments of the C-MR thesis, on trades of its shape. First a moving average over windows
of 5 to 300 seconds, every second: one slide after the other, map, packing and reduction in this
process, without Spark, which would cost the same for all. *Recomputed* runs the batch job over all
trades of every window; *values* maps each trade once, and adds up the values of every window;
*panes* is what ``window=`` does. Then the difference of two moving averages as a workflow on Spark,
in the three forms of ``examples/macd.py``: how long an epoch takes that has so many minutes of
trades. As in the thesis they are played back faster than they were made, at several speeds: the
faster, the more of an epoch is work, and the less what Spark takes for any epoch. The goal is for
the slowest.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.rounds import rounds
from examples.macd import FORMS, parse, trades, workflow
from millstream.flow.plan import plan
from millstream.flow.vertices import JobVertex
from millstream.observe.progress import EpochProgress
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Gate
from millstream.work.job_clock import JobClock
from millstream.work.keyed_values import keyed
from millstream.work.operators import operator_for
from millstream.work.packers.packer import packer_for
from millstream.work.unit import UnitContext

SLOTS = 1024
SECOND = 1_000_000
SIZES = (5, 15, 60, 150, 300)
_FULL = 10  # minutes until the largest window of trades is full
MODES = ("recomputed", "values", "panes")
Averages = Mapping[str, float]
Differences = Mapping[tuple[str, datetime], float]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    sizes: Sequence[int]
    slides: int
    epochs: int
    speeds: Sequence[int]  # minutes in an epoch
    rounds: int
    seconds: float


FULL = Size(sizes=SIZES, slides=60, epochs=8, speeds=(1, 4), rounds=5, seconds=480.0)
QUICK = Size(sizes=(5, 60), slides=10, epochs=3, speeds=(1,), rounds=1, seconds=120.0)


def windows(_: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    results = [*sliding(size)]
    for minutes in size.speeds:
        results += macd(options.folder, size, minutes)
    note_goals(results)
    return results


# -- one window, slide by slide --------------------------------------------------------------


class Recording:
    """Trades that are read second by second."""

    def __init__(self, seconds: int) -> None:
        table = trades(seconds).combine_chunks()
        times = table["time"].cast(pa.int64()).to_numpy()
        self.start = int(times[0])
        self._cuts = np.searchsorted(times, self.start + np.arange(seconds + 1) * SECOND)
        self._batch = table.to_batches()[0]

    def between(self, first: int, last: int) -> pa.RecordBatch:
        """The trades of the seconds [first, last)."""
        cut, end = int(self._cuts[max(0, first)]), int(self._cuts[last])
        return self._batch.slice(cut, end - cut)


def job_of(size: int, panes: bool | None) -> JobVertex:
    """A moving average; without a window if nothing is said of panes."""
    flow = ms.Workflow("average")
    source = flow.source("trades", ms.read.rate())
    if panes is None:
        source.map_reduce("average", map=parse, reduce=ms.mean())
    else:
        window = ms.sliding(timedelta(seconds=size), timedelta(seconds=1))
        source.map_reduce("average", map=parse, reduce=ms.mean(), window=window)
    [(_, job)] = plan(flow).jobs
    if job.windowing is not None:
        job = replace(job, windowing=replace(job.windowing, panes=panes))
    return replace(job, inputs=())


def recomputed(recording: Recording, size: int) -> Callable[[int], Averages]:
    """A batch job for every window: map and reduce over all of its trades."""
    job = job_of(size, None)

    def slide(second: int) -> Averages:
        packer = packer_for(job, SLOTS)
        for values in keyed(job, Chunk(batch=recording.between(second + 1 - size, second + 1))):
            packer.add(values)
        packed = packer.flush()
        reduced = operator_for(job, SLOTS).reduce(
            [] if packed is None else [packed], UnitContext(range(SLOTS), 0)
        )
        return _averages(reduced.outputs)

    return slide


def windowed(recording: Recording, size: int, panes: bool) -> Callable[[int], Averages]:
    """A windowed job: each trade is mapped once."""
    job = job_of(size, panes)
    operator = operator_for(job, SLOTS)
    clock = JobClock(limits={0: 2**62}, folding=panes)

    def slide(second: int) -> Averages:
        nonlocal clock
        clock = replace(
            clock,
            closed=clock.watermark,
            watermark=recording.start + (second + 1) * SECOND,
        )
        gate = Gate(job, clock, 0, ())
        packer = packer_for(job, SLOTS, folding=panes)
        chunk = Chunk(batch=recording.between(second, second + 1))
        for values in keyed(job, chunk):
            taken = gate.admit(values, 0, None).taken
            packer.add(taken.values, taken.times)
        packed = packer.flush()
        unit = UnitContext(range(SLOTS), 0, clock=clock, epoch=second)
        reduced = operator.reduce([] if packed is None else [packed], unit)
        operator.state.apply(reduced.fragment)
        return _averages(reduced.outputs)

    return slide


def _averages(outputs: Sequence[pa.RecordBatch]) -> Averages:
    found: dict[str, float] = {}
    for batch in outputs:
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        found.update(zip(keys, values, strict=True))
    return found


def sliding(size: Size) -> Iterator[Result]:
    """The cost of a slide, by the size of the window and how it is computed."""
    largest = max(size.sizes)
    recording = Recording(largest + size.slides)
    full = recording.between(0, largest).num_rows
    note(f"{size.slides} slides of a second; {full:,} trades fill a window of {largest} s")
    costs: dict[tuple[str, int], float] = {}
    for seconds in size.sizes:
        ways = {
            "recomputed": recomputed(recording, seconds),
            "values": windowed(recording, seconds, False),
            "panes": windowed(recording, seconds, True),
        }
        for second in range(largest):  # the windows fill
            for name in ("values", "panes"):
                ways[name](second)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for second in range(largest, largest + size.slides):
            found = {}
            for name, way in ways.items():
                started = time.perf_counter()
                found[name] = way(second)
                taken[name].append(1000 * (time.perf_counter() - started))
            _check(found)
        costs.update({(name, seconds): sum(ms) / len(ms) for name, ms in taken.items()})
        note(f"{seconds} s: " + ", ".join(f"{costs[n, seconds]:.1f} ms {n}" for n in ways))
    note_table(
        [("ms per slide", *(f"{seconds} s" for seconds in size.sizes))]
        + [(n, *(f"{costs[n, seconds]:.1f}" for seconds in size.sizes)) for n in MODES]
    )
    for (name, seconds), cost in costs.items():
        yield Result(f"slide_{name}_{seconds}s_ms", cost, "ms")
    least = min(size.sizes)
    yield Goal(
        f"panes_vs_recompute_{largest}s",
        costs["recomputed", largest] / costs["panes", largest],
        "times",
        at_least=10,
    )
    yield Goal(
        f"slide_cost_{largest}s_vs_{least}s",
        costs["panes", largest] / costs["panes", least],
        "times",
        at_most=2,
    )


def _check(found: Mapping[str, Averages]) -> None:
    """All ways give the same averages."""
    wanted = found["recomputed"]
    for name, averages in found.items():
        if not _same(averages, wanted):
            raise SystemExit(f"{name} gives other averages")


# -- a workflow on Spark ---------------------------------------------------------------------


def macd(folder: Path, size: Size, minutes: int) -> Iterator[Result]:
    """How long an epoch with so many minutes of trades takes, in the three forms."""
    filling = -(-_FULL // minutes)
    table = trades(60 * minutes * (filling + size.epochs))
    per_epoch = table.num_rows // (filling + size.epochs)
    note(f"{per_epoch:,} trades, {minutes} minutes, in an epoch; {filling} epochs fill the windows")
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    reduce: dict[str, list[float]] = {form: [] for form in FORMS}
    wanted: Differences = {}
    for number in rounds(size.rounds, size.seconds):
        # There and back again: a machine that drifts treats all alike.
        for form in FORMS if number % 2 == 0 else reversed(FORMS):
            out = folder / f"{form}-{minutes}-{number}"
            reports = _run(form, table, out, per_epoch)
            found = _differences(out / form)
            wanted = wanted or found
            if not _same(found, wanted):
                raise SystemExit(f"the form {form} gives other differences")
            steady = reports[filling + 1 : -1]  # the last epoch closes the windows that are left
            taken[form].append(1000 * median(report.seconds for report in steady))
            reduce[form].append(
                1000 * median(sum(j.reduce_seconds for j in r.jobs.values()) for r in steady)
            )
            note(f"{form}: {taken[form][-1]:.0f} ms for an epoch")
    latency = {form: median(found) for form, found in taken.items()}
    name = f"macd_{minutes}min"
    for form in FORMS:
        yield Result(f"{name}_{form}_epoch_ms", latency[form], "ms")
        yield Result(f"{name}_{form}_reduce_ms", median(reduce[form]), "ms")
    gain = 1 - latency["panes"] / latency["simple"]
    if minutes > min(size.speeds):
        yield Result(f"{name}_shared_latency_gain", gain, "of the latency")
    else:
        yield Goal("macd_shared_latency_gain", gain, "of the latency", at_least=0.31)


def _differences(folder: Path) -> Differences:
    rows = ds.dataset(folder).to_table(["symbol", "time", "macd"]).to_pylist()
    return {(row["symbol"], row["time"]): row["macd"] for row in rows}


def _same(found: Mapping[Any, float], wanted: Mapping[Any, float]) -> bool:
    """Whether all is there, up to the order in which prices were added up."""
    return found.keys() == wanted.keys() and all(
        abs(found[key] - value) < 1e-6 for key, value in wanted.items()
    )


def _run(form: str, table: pa.Table, folder: Path, rows: int) -> list[EpochProgress]:
    reports: list[EpochProgress] = []
    flow = workflow(form, ms.read.replay(table, rows_per_epoch=rows), folder)
    with ms.start(flow, nodes=2) as run:
        run.progress.listen(reports.append)
        run.await_termination()
    return [r for r in reports if sum(job.rows for job in r.jobs.values())]


if __name__ == "__main__":
    main(__doc__ or "", windows)
