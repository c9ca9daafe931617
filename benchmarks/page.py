"""Writes ``docs/benchmarks.md`` from the results of ``compare.py``. Nobody edits that page.

Those of a quick comparison are taken if there are no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import NODES, PAYLOADS, REPLICAS
from benchmarks.goals import Goal, known_results
from benchmarks.harness import Result
from benchmarks.peers.entries import BY_NAME, MILLSTREAM, ROOT, ROWS, Entry, Timing
from benchmarks.plots import Bar, bars
from benchmarks.workloads.catalog import WORKLOADS

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOT = "images/benchmarks-words.svg"
EPOCH_SIZES = (10_000, 100_000, 1_000_000, 5_000_000)
CELLS = {
    "1m": "Word count, a million words an epoch, 100,000 keys",
    "5m": "Word count, five million words an epoch, 100,000 keys",
    "small": "Spark's stateful operators in Python, on the same epochs",
    "tiny": "Tiny epochs: 1,000 rows of ten words",
    "ft": "What fault tolerance costs",
    "keys_1k": "1,000 keys, all equally frequent",
    "keys_100k": "100,000 keys, all equally frequent",
    "keys_1000k": "A million keys, all equally frequent",
    "keys_10000k": "10 million keys, all equally frequent",
    **{f"nodes_{n}": f"Cost curves: {n} nodes" for n in NODES},
    **{f"replicas_{n}": f"Cost curves: {n} replicas on 3 nodes" for n in REPLICAS},
    **{f"epoch_{n}": f"Cost curves: {n:,} words an epoch" for n in EPOCH_SIZES},
    **{f"payload_{n}": f"Cost curves: {n:,} bytes of state beside a count" for n in PAYLOADS},
    "least": "Cost curves: epochs of two rows",
    "skew_0": "Skew: all words equally frequent",
    "skew_0.5": "Skew: Zipf with exponent 0.5",
    "skew_1": "Skew: Zipf with exponent 1",
    "skew_1.5": "Skew: Zipf with exponent 1.5",
    "skew_2": "Skew: Zipf with exponent 2",
}
COLUMNS: dict[str, Callable[[float], str]] = {
    "{unit}_per_second": lambda value: f"{value:,.0f}",
    "spread": lambda value: f"{value:.0%}",
    "epoch_ms": lambda value: f"{value:,.0f}",
    "cpu_per_million_{unit}": lambda value: f"{value:.2f}",
    "peak_memory": lambda value: f"{value / 1e6:,.0f}",
}
HEADING = "| | durable | {unit}/s | spread | epoch, ms | CPU, s per million {unit} | memory, MB |"
_INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench-page` from the results of compare.py. Do not edit. -->

`make bench-quick` takes these figures on your machine in ten minutes, `make bench` all of them;
`benchmarks/README.md` has the details. Every engine reads the same files, in an environment of its
own with pinned versions, in the form that its documentation recommends for speed. Its answer is
compared with the right one before a figure counts. Engines stay warm in processes of their own and
take turns; a figure is the median of the rounds, *spread* the largest less the smallest over it.
Epochs are timed from the end of one to the end of the next, in the second half of a run. An engine
without epochs is timed by a long run less a short one, which takes out what it costs to start. CPU
time and memory (that is not backed by files) are those of all processes of an engine; for engines
with epochs, the CPU time includes the start and the end of a run.
"""
_SAME = """\
## What is not the same

- Millstream syncs every epoch to the disk and has a copy of the state in a second process. Spark
  writes the changes of every epoch and does not sync them. Flink, Bytewax and Pathway checkpoint
  every second, less often than every million words; Pathway persists its input. The batch queries
  keep nothing.
- Flink has its state on the heap, faster than RocksDB where it fits, and checkpoints all of
  it. PyFlink's threads and Bytewax's workers are Python: two of them share one interpreter in
  Flink's JVM, and have one each in Bytewax's processes.
- A stateful function sees every word. `GROUP BY`, `groupBy`, `groupby` and the built-in count add
  up words before they are shuffled.
- In the word count, Flink, Bytewax and Pathway write no results in the timed runs; a run before
  them writes its changes, by which the answer is checked. All others are checked after every run.
- Where rows are counted, all but DuckDB write their results to files, each of them once. Flink
  reads the rows as CSV, the others as Parquet, which Flink reads only with Hadoop.
"""


def page(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION, _machine(about), *_promises(results)]
    for cell, title in CELLS.items():
        image = f"![words per second]({PLOT})\n" if cell == "1m" else ""
        parts += _section(title, image, list(_table(cell, results, BY_NAME, "words")), "words")
    for workload in WORKLOADS.values():
        parts += _section(
            workload.title, "", list(_table(workload.name, results, ROWS, "rows")), "rows"
        )
    return "\n".join([*parts, _SAME])


def _section(title: str, image: str, table: Sequence[str], unit: str) -> Iterator[str]:
    if table:
        yield f"## {title}\n"
        if image:
            yield image
        heading = HEADING.format(unit=unit)
        yield "\n".join([heading, "|---|---|---|---|---|---|---|", *table]) + "\n"


def plot(results: Sequence[Result]) -> str:
    """Words per second of all, the fastest first."""
    rates = _rates("1m", results, BY_NAME, "words")
    ordered = sorted(rates, key=lambda name: -rates[name])
    return bars(
        "words per second, a million words an epoch",
        [
            Bar(
                BY_NAME[name].title,
                rates[name],
                f"{rates[name] / 1e6:.2f} M",
                ours=BY_NAME[name].engine == MILLSTREAM,
            )
            for name in ordered
        ],
    )


def _machine(about: Mapping[str, Any]) -> str:
    machine, versions = about["machine"], dict(about["versions"])
    for engine in about.get("peers", {}).values():
        versions |= {name: version for name, version in engine.items() if name != "python"}
    names = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    memory = machine["memory_bytes"] / 2**30
    size = "; a quick run, with less data" if about.get("quick") else ""
    return (
        f"Taken {about['taken'][:10]} on {machine['cores']} cores ({machine['cpu']}), "
        f"{memory:.0f} GB{size}. Versions: {names}.\n"
    )


def _promises(results: Sequence[Result]) -> Iterator[str]:
    goals = [result for result in results if isinstance(result, Goal)]
    rows = [
        f"| `{goal.name}` | {goal.value:.3g} {goal.unit} | {goal.promise} | "
        f"{'yes' if goal.met else '**no**'} |"
        for goal in goals
    ]
    bytes_per_key = [
        f"| `{result.name}` | {result.value:,.0f} {result.unit} | | |"
        for result in results
        if "bytes_per_key" in result.name or result.name.startswith(("latency_", "spark_latency"))
        if not isinstance(result, Goal)
    ]
    heading = "| result | value | goal | met |\n|---|---|---|---|"
    yield "## Goals\n"
    yield "\n".join([heading, *rows, *bytes_per_key]) + "\n"


def _table(
    cell: str, results: Sequence[Result], entries: Mapping[str, Entry], unit: str
) -> Iterator[str]:
    values = {result.name: result.value for result in results}
    rates = _rates(cell, results, entries, unit)
    for name in sorted(rates, key=lambda name: -rates[name]):
        entry = entries[name]
        title = f"*{entry.title}*" if entry.timing is Timing.WHOLE else entry.title
        shown = []
        for column, text in COLUMNS.items():
            value = values.get(f"{cell}_{name}_{column.format(unit=unit)}")
            shown.append("" if value is None else text(value))
        yield f"| {title} | {entry.durable} | {' | '.join(shown)} |"


def _rates(
    cell: str, results: Sequence[Result], entries: Mapping[str, Entry], unit: str
) -> dict[str, float]:
    """Words or rows per second by entry."""
    found = {result.name: result.value for result in results}
    names = {name: f"{cell}_{name}_{unit}_per_second" for name in entries}
    return {name: found[key] for name, key in names.items() if key in found}


def main() -> None:
    full, quick = RESULTS / "compare.json", RESULTS / "compare_quick.json"
    file = full if full.exists() else quick
    if not file.exists():
        raise SystemExit(f"there are no results: make bench ARGS='--json {full}'")
    results = known_results(file)
    about = json.loads(file.with_suffix(".environment.json").read_text())
    PAGE.write_text(page(results, about))
    image: Path = PAGE.parent / PLOT
    image.parent.mkdir(exist_ok=True)
    image.write_text(plot(results))
    print(f"wrote {PAGE} and {image}")


if __name__ == "__main__":
    main()
