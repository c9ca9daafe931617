"""The parts of the comparison with all peers: each compares some entries, and gives results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles

from benchmarks.compare_sizes import Size
from benchmarks.data import Dataset
from benchmarks.field import Field, Trial
from benchmarks.figures import Figure
from benchmarks.goals import Goal, note_table
from benchmarks.harness import Result, note, session
from benchmarks.peers import entries as of
from benchmarks.peers.entries import Entry
from benchmarks.windows import macd
from benchmarks.word_count import WordCount
from benchmarks.workloads.matching import MATCHES
from benchmarks.workloads.nexmark import NEXMARK
from benchmarks.workloads.sessions import SESSIONS
from benchmarks.workloads.trending import TRENDING
from benchmarks.workloads.wide_rows import WIDE_ROWS

Figures = Mapping[str, Figure]
NODES = (1, 2, 4, 8)
REPLICAS = (0, 1, 2)
PAYLOADS = (0, 100, 1_000)  # bytes in the state of a key, beside its count


@dataclass(frozen=True)
class Arena:
    """What a part has: the field, sizes, and a folder."""

    field: Field
    size: Size
    folder: Path

    def trial(self, size: WordCount) -> Trial:
        return self.trial_of(self.field.text(size))

    def trial_of(self, given: Dataset) -> Trial:
        return Trial(
            given=given,
            rounds=self.size.rounds,
            slow_epochs=self.size.slow_epochs,
            warm=self.size.warm,
            seconds=self.size.seconds,
        )


# -- throughput ------------------------------------------------------------------------------


def throughput(arena: Arena) -> list[Result]:
    """Everyone on epochs of a million words, and those with a promise on epochs of five."""
    everyone = (*of.STREAMING, *of.LIMITS) if arena.size.everyone else of.PROMISED
    one = arena.field.compare(everyone, arena.trial(arena.size.one))
    duckdb, *_ = of.LIMITS
    few = (of.BUILTIN, of.STATEFUL, of.GROUPBY, duckdb)
    five = arena.field.compare(few, arena.trial(arena.size.five))
    return [
        *figures_of("1m", one),
        *figures_of("5m", five),
        *ratio("builtin_vs_groupby_1m", one, of.BUILTIN, [of.GROUPBY], 4),
        *ratio("builtin_vs_groupby_5m", five, of.BUILTIN, [of.GROUPBY], 4),
        *ratio("builtin_vs_flink_sql", one, of.BUILTIN, [of.FLINK_SQL], 4),
        *ratio("builtin_vs_duckdb", five, of.BUILTIN, [duckdb], 0.4),
        *ratio("sql_vs_groupby", one, of.SQL, [of.GROUPBY], 2.5),
        *ratio("stateful_vs_groupby_1m", one, of.STATEFUL, [of.GROUPBY], 2),
        *ratio("stateful_vs_groupby_5m", five, of.STATEFUL, [of.GROUPBY], 1.5),
        *ratio("stateful_vs_bytewax", one, of.STATEFUL, of.BYTEWAX_FORMS, 10),
        *ratio("stateful_vs_flink_sql", one, of.STATEFUL, [of.FLINK_SQL], 2),
        *ratio("stateful_vs_flink_datastream", one, of.STATEFUL, [of.FLINK_DATASTREAM]),
        *ratio("builtin_vs_pathway", one, of.BUILTIN, [of.PATHWAY_GROUPBY]),
    ]


def python_state(arena: Arena) -> list[Result]:
    """Spark's stateful operators in Python, which take long, beside ours on the same epochs."""
    trial = replace(arena.trial(arena.size.small), rounds=min(2, arena.size.rounds))
    found = arena.field.compare((of.STATEFUL, *of.CRAWLING), trial)
    return [
        *figures_of("small", found),
        *ratio("stateful_vs_tws_pandas", found, of.STATEFUL, [of.TWS_PANDAS], 150),
        *ratio("stateful_vs_tws_row", found, of.STATEFUL, [of.TWS_ROW]),
        *ratio("stateful_vs_pandas_with_state", found, of.STATEFUL, [of.PANDAS_WITH_STATE]),
    ]


# -- the cost of fault tolerance, and latency ------------------------------------------------


def fault_tolerance(arena: Arena) -> list[Result]:
    """What a replica and durable epochs cost; the dearer of both kinds stands for it."""
    kinds = {"builtin": (of.BUILTIN, of.BUILTIN_OFF), "stateful": (of.STATEFUL, of.STATEFUL_OFF)}
    those = [entry for pair in kinds.values() for entry in pair]
    large = arena.field.compare(those, arena.trial(arena.size.one))
    tiny = arena.field.compare(those, arena.trial(arena.size.tiny))
    lost = {
        kind: 1 - large[on.name].rate / large[off.name].rate for kind, (on, off) in kinds.items()
    }
    longer = {kind: _epoch(tiny, on) / _epoch(tiny, off) - 1 for kind, (on, off) in kinds.items()}
    return [
        *figures_of("ft", large),
        *(Result(f"ft_cost_throughput_{kind}", cost, "of the rate") for kind, cost in lost.items()),
        *(Result(f"ft_cost_latency_{kind}", cost, "of the time") for kind, cost in longer.items()),
        Goal("ft_cost_throughput", max(lost.values()), "of the rate", at_most=0.15),
        Goal("ft_cost_latency", max(longer.values()), "of the time", at_most=0.20),
    ]


def latency(arena: Arena) -> list[Result]:
    """Tiny epochs, one after the other; then records that come at a rate."""
    tiny = arena.field.compare((of.STATEFUL, of.BUILTIN, of.GROUPBY), arena.trial(arena.size.tiny))
    share = _epoch(tiny, of.STATEFUL) / _epoch(tiny, of.GROUPBY)
    results = [
        *figures_of("tiny", tiny),
        Result(
            "tiny_epoch_builtin_vs_spark",
            _epoch(tiny, of.BUILTIN) / _epoch(tiny, of.GROUPBY),
            "times",
        ),
        Goal("tiny_epoch_vs_spark", share, "times", at_most=0.75),
    ]
    times = {}
    for entry in (of.PACED, of.SPARK_PACED):
        found = arena.field.paced(entry, arena.size.paced, arena.size.settling)
        cuts = quantiles(found, n=100, method="inclusive")
        times[entry.name] = {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}
        note(f"{entry.title}: p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms")
    for which in ("p50", "p99"):
        ours, theirs = times[of.PACED.name][which], times[of.SPARK_PACED.name][which]
        results += [
            Result(f"latency_{which}_ms", ours, "ms"),
            Result(f"spark_latency_{which}_ms", theirs, "ms"),
            Goal(f"latency_{which}_vs_spark", ours / theirs, "times", at_most=1),
        ]
    return results


def moving_averages(arena: Arena) -> list[Result]:
    """What shared panes save: the workflow of ``windows.py``, a minute of trades in an epoch."""
    arena.field.stop_all()
    spark = session()
    try:
        return list(macd(arena.folder, arena.size.trades, 1))
    finally:
        spark.stop()


# -- keys and skew ---------------------------------------------------------------------------


def keys(arena: Arena) -> list[Result]:
    """Few keys and many: throughput, and the memory that a key takes."""
    those = (of.BUILTIN, of.STATEFUL, of.GROUPBY, of.FLINK_SQL)
    results: list[Result] = []
    found: dict[str, Figures] = {}
    given = {name: arena.field.text(size) for name, size in arena.size.keys.items()}
    for name, text in given.items():
        figures: dict[str, Figure] = {}
        for entry in those:
            # Memory that a process got for the last text would count for this one.
            arena.field.stop_all()
            figures.update(arena.field.compare([entry], arena.trial_of(text)))
        found[name] = figures
        results += figures_of(f"keys_{name}", figures)
    *_, few, many = given
    more = arena.field.keys(given[many]) - arena.field.keys(given[few])
    for entry in those:
        if entry.name in found[many] and entry.name in found[few]:
            at_few, at_many = found[few][entry.name], found[many][entry.name]
            share = at_many.rate / at_few.rate
            if entry in (of.BUILTIN, of.STATEFUL):
                results += [
                    Goal(f"keys_throughput_{entry.name}", share, "times", at_least=0.8),
                    Result(f"bytes_per_key_{entry.name}", at_many.node_bytes_per_key, "bytes"),
                ]
            else:
                results.append(Result(f"keys_throughput_{entry.name}", share, "times"))
            growth = (at_many.memory - at_few.memory) / more
            results.append(Result(f"process_bytes_per_key_{entry.name}", growth, "bytes"))
    return results


def skew(arena: Arena) -> list[Result]:
    """From uniform words to a few that are most of the text."""
    results: list[Result] = []
    for exponent, size in arena.size.skews.items():
        found = arena.field.compare((of.BUILTIN, of.STATEFUL, of.GROUPBY), arena.trial(size))
        results += figures_of(f"skew_{exponent}", found)
    return results


def cost_curves(arena: Arena) -> list[Result]:
    """What nodes, replicas, the size of epochs and that of values do to the rate; and the least."""
    results: list[Result] = []
    trial = arena.trial(arena.size.curve)
    for nodes in NODES:
        options = {"nodes": nodes, "replicas": min(1, nodes - 1)}
        results += _curve(arena, f"nodes_{nodes}", trial, options)
    for replicas in REPLICAS:
        options = {"nodes": 3, "replicas": replicas}
        results += _curve(arena, f"replicas_{replicas}", trial, options)
    for size in arena.size.epoch_sizes:
        results += _curve(arena, f"epoch_{size.words_per_epoch}", arena.trial(size), {})
    for payload in PAYLOADS:
        sized = [
            replace(entry, options={"payload": payload})
            for entry in (of.STATEFUL, of.BYTEWAX_BATCH)
        ]
        results += figures_of(f"payload_{payload}", arena.field.compare(sized, trial))
    least = arena.field.compare((of.BUILTIN, of.GROUPBY), arena.trial(arena.size.least))
    results += figures_of("least", least)
    for name, figure in least.items():
        for phase, took in figure.samples[-1].facts.items():
            if phase.endswith("_ms"):
                results.append(Result(f"least_{name}_phase_{phase}", took, "ms"))
    return results


def _curve(arena: Arena, cell: str, trial: Trial, options: Mapping[str, object]) -> list[Result]:
    those = [replace(entry, options=options) for entry in (of.BUILTIN, of.STATEFUL)]
    return figures_of(cell, arena.field.compare(those, trial))


# -- workloads of rows -----------------------------------------------------------------------


def _rows(*workloads: str) -> Callable[[Arena], list[Result]]:
    """A part that takes all engines through some workloads."""

    def part(arena: Arena) -> list[Result]:
        return [result for name in workloads for result in _workload(arena, name)]

    return part


def _workload(arena: Arena, name: str) -> list[Result]:
    size = arena.size.wide if name == WIDE_ROWS.name else arena.size.rows
    given = arena.field.recording(name, size)
    those = [each for each in of.ROWS.values() if each is not of.ROWS_FLINK or given.workload.flink]
    found = arena.field.compare(those, arena.trial_of(given))
    return [
        *figures_of(name, found, given.unit),
        *ratio(f"{name}_vs_spark", found, of.ROWS_MILLSTREAM, [of.ROWS_SPARK]),
        *ratio(f"{name}_vs_flink_sql", found, of.ROWS_MILLSTREAM, [of.ROWS_FLINK]),
        *ratio(f"{name}_vs_duckdb", found, of.ROWS_MILLSTREAM, [of.ROWS_DUCKDB]),
    ]


PARTS: dict[str, Callable[[Arena], list[Result]]] = {
    "throughput": throughput,
    "python-state": python_state,
    "fault-tolerance": fault_tolerance,
    "latency": latency,
    "moving-averages": moving_averages,
    "keys": keys,
    "skew": skew,
    "cost-curves": cost_curves,
    "sessions": _rows(SESSIONS.name),
    "nexmark": _rows(*(query.name for query in NEXMARK)),
    "trending": _rows(TRENDING.name),
    "matching": _rows(MATCHES.name),
    "wide-rows": _rows(WIDE_ROWS.name),
}
QUICK_PARTS = ("throughput", "python-state", "fault-tolerance", "latency", "moving-averages")


# -- results ---------------------------------------------------------------------------------


def ratio(
    name: str,
    found: Figures,
    ours: Entry,
    theirs: Sequence[Entry],
    at_least: float | None = None,
) -> list[Result]:
    """Our rate over the fastest of theirs; nothing if one of them did not run."""
    rates = [found[entry.name].rate for entry in theirs if entry.name in found]
    if not rates or ours.name not in found:
        return []
    value = found[ours.name].rate / max(rates)
    if at_least is None:
        return [Result(name, value, "times")]
    return [Goal(name, value, "times", at_least=at_least)]


def figures_of(cell: str, found: Figures, unit: str = "words") -> list[Result]:
    """The figures of all entries, which are also shown as a table."""
    results: list[Result] = []
    table = [[cell, f"{unit}/s", "spread", "epoch ms", f"CPU s/M {unit}", "MB", "others"]]
    for name, figure in found.items():
        start = f"{cell}_{name}"
        epoch = figure.epoch_ms
        results += [
            Result(f"{start}_{unit}_per_second", figure.rate, f"{unit}/s"),
            Result(f"{start}_spread", figure.spread, "of the rate"),
            Result(f"{start}_cpu_per_million_{unit}", figure.cpu_per_million, "s"),
            Result(f"{start}_peak_memory", figure.memory, "bytes"),
            Result(f"{start}_other_cpu", figure.others, "of its CPU time"),
        ]
        if epoch is not None:
            results.append(Result(f"{start}_epoch_ms", epoch, "ms"))
        table.append(
            [
                name,
                f"{figure.rate:,.0f}",
                f"{figure.spread:.0%}",
                "" if epoch is None else f"{epoch:.0f}",
                f"{figure.cpu_per_million:.2f}",
                f"{figure.memory / 1e6:,.0f}",
                f"{figure.others:.0%}",
            ]
        )
    note_table(table)
    return results


def _epoch(found: Figures, entry: Entry) -> float:
    epoch = found[entry.name].epoch_ms
    assert epoch is not None
    return epoch
