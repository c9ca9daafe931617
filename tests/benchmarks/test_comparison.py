"""Every promised ratio comes from its part, and is left out if an engine did not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks.compare_sizes import SMOKE
from benchmarks.comparison import PARTS, Arena, ratio
from benchmarks.data import Dataset, Text
from benchmarks.field import Field, Trial
from benchmarks.figures import Figure, Sample
from benchmarks.goals import Goal
from benchmarks.peers import entries as of
from benchmarks.peers.entries import Entry
from benchmarks.word_count import WordCount
from benchmarks.workloads.catalog import Recording, Rows

FACTS = {
    "first_node_bytes": 0.0,
    "first_keys": 0.0,
    "last_node_bytes": 300.0,
    "last_keys": 2.0,
    "addBatch_ms": 7.0,
}
PROMISED = {
    "throughput": {
        "builtin_vs_groupby_1m",
        "builtin_vs_groupby_5m",
        "builtin_vs_flink_sql",
        "builtin_vs_duckdb",
        "sql_vs_groupby",
        "stateful_vs_groupby_1m",
        "stateful_vs_groupby_5m",
        "stateful_vs_bytewax",
        "stateful_vs_flink_sql",
    },
    "python-state": {"stateful_vs_tws_pandas"},
    "fault-tolerance": {"ft_cost_throughput", "ft_cost_latency"},
    "latency": {"tiny_epoch_vs_spark", "latency_p50_vs_spark", "latency_p99_vs_spark"},
    "keys": {"keys_throughput_builtin", "keys_throughput_stateful"},
    "skew": set(),
    "cost-curves": set(),
    "sessions": set(),
    "nexmark": set(),
    "matching": set(),
}


class Known(Field):
    """A field whose figures are known: our rates are 8, all others 2, but for those that fail."""

    def __init__(self, *, failing: Iterable[Entry] = ()) -> None:
        super().__init__(Path(), timeout=0.0)
        self._failing = {entry.name for entry in failing}

    def text(self, size: WordCount) -> Text:
        return Text(Path(str(size.keys)), size.epochs, 0, size.words_per_epoch)

    def recording(self, workload: str, size: Rows) -> Recording:
        return Recording(workload, Path(), size.epochs, size.rows_per_epoch)

    def keys(self, given: Dataset) -> int:
        return int(given.folder.name)

    def compare(self, entries: Sequence[Entry], trial: Trial) -> dict[str, Figure]:
        return {
            entry.name: Figure([_sample(entry)])
            for entry in entries
            if entry.name not in self._failing
        }

    def paced(self, entry: Entry, seconds: float, settling: float) -> list[float]:
        scale = 1.0 if entry is of.PACED else 2.0
        return [scale * number / 1000 for number in range(101)]


def _sample(entry: Entry) -> Sample:
    rate = 8.0 if entry.engine == of.MILLSTREAM else 2.0
    return Sample(rate, 1.0, 100, 0.0, [1000 / rate], FACTS)


@pytest.mark.parametrize("part", PROMISED)
def test_a_part_gives_all_that_it_promises(part: str) -> None:
    results = PARTS[part](Arena(Known(), SMOKE, Path()))

    assert {result.name for result in results if isinstance(result, Goal)} == PROMISED[part]
    names = [result.name for result in results]
    assert len(names) == len(set(names))


def test_rates_are_divided_and_costs_are_parts() -> None:
    arena = Arena(Known(), SMOKE, Path())

    found = {
        r.name: r.value
        for part in ("throughput", "latency", "keys", "fault-tolerance")
        for r in PARTS[part](arena)
    }

    assert found["builtin_vs_groupby_1m"] == 4
    assert found["tiny_epoch_vs_spark"] == 0.25
    assert found["latency_p50_ms"] == pytest.approx(50)
    assert found["spark_latency_p99_ms"] == pytest.approx(198)
    assert found["latency_p99_vs_spark"] == pytest.approx(0.5)
    assert found["ft_cost_throughput"] == found["ft_cost_latency"] == 0
    assert found["bytes_per_key_builtin"] == 150
    assert found["process_bytes_per_key_spark_groupby"] == 0


def test_workloads_of_rows_are_compared_with_those_that_can_run_them() -> None:
    arena = Arena(Known(), SMOKE, Path())

    found = {r.name: r.value for part in ("nexmark", "matching") for r in PARTS[part](arena)}

    assert found["nexmark_q5_millstream_rows_per_second"] == 8
    assert found["nexmark_q5_vs_spark"] == found["nexmark_q5_vs_flink_sql"] == 4
    assert found["matching_vs_spark"] == 4
    assert "matching_flink_sql_rows_per_second" not in found


def test_without_an_engine_its_ratios_are_left_out() -> None:
    arena = Arena(Known(failing=[of.FLINK_SQL, of.BYTEWAX_MAP]), SMOKE, Path())

    names = {result.name for result in PARTS["throughput"](arena)}

    assert "builtin_vs_flink_sql" not in names
    assert {"stateful_vs_bytewax", "builtin_vs_duckdb"} <= names


def test_the_fastest_of_theirs_counts() -> None:
    figures = {
        "stateful": Figure([Sample(8.0, 1.0, 1, 0.0)]),
        "bytewax_stateful_map": Figure([Sample(1.0, 1.0, 1, 0.0)]),
        "bytewax_stateful_batch": Figure([Sample(4.0, 1.0, 1, 0.0)]),
    }

    [found] = ratio("x", figures, of.STATEFUL, of.BYTEWAX_FORMS, 3)

    assert isinstance(found, Goal)
    assert (found.value, found.met) == (2, False)
