"""The page about benchmarks has what was measured."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.goals import Goal, merged
from benchmarks.harness import Result, write_results
from benchmarks.page import page, plot

ABOUT = {
    "taken": "2026-01-02T03:04:05+00:00",
    "machine": {"cores": 2, "cpu": "some", "memory_bytes": 2**34},
    "versions": {"python": "3.11"},
    "peers": {"duckdb": {"duckdb": "2.0", "python": "3.12"}},
}
RESULTS = [
    Goal("builtin_vs_groupby_1m", 4.2, "times", at_least=4),
    Goal("tiny_epoch_vs_spark", 0.9, "times", at_most=0.75),
    Result("1m_spark_groupby_words_per_second", 1_000_000.0, "words/s"),
    Result("1m_builtin_words_per_second", 4_200_000.0, "words/s"),
    Result("1m_builtin_epoch_ms", 238.0, "ms"),
    Result("bytes_per_key_builtin", 357.0, "bytes"),
    Result("sessions_spark_rows_per_second", 500_000.0, "rows/s"),
    Result("sessions_millstream_rows_per_second", 900_000.0, "rows/s"),
    Result("sessions_millstream_cpu_per_million_rows", 1.5, "s"),
]


def test_the_page_shows_promises_and_a_table_with_the_fastest_first() -> None:
    text = page(RESULTS, ABOUT)

    assert "| `builtin_vs_groupby_1m` | 4.2 times | at least 4 | yes |" in text
    assert "| `tiny_epoch_vs_spark` | 0.9 times | at most 0.75 | **no** |" in text
    assert "| `bytes_per_key_builtin` | 357 bytes |" in text
    ours, theirs = text.index("| Millstream, built-in"), text.index("| Spark, groupBy")
    assert ours < theirs
    assert "| 4,200,000 |  | 238 |" in text
    assert "duckdb 2.0" in text and "python 3.11" in text
    assert "five million words" not in text
    assert "## Sessions of clicks" in text and "| | durable | rows/s |" in text
    assert "| 900,000 |  |  | 1.50 |  |" in text


def test_the_plot_has_a_bar_for_every_engine() -> None:
    drawn = ElementTree.fromstring(plot(RESULTS))

    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1:3] == ["Millstream, built-in count, Arrow map", "4.20 M"]
    assert texts[3:] == ["Spark, groupBy().count()", "1.00 M"]


def test_a_part_that_is_taken_anew_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_results(file, RESULTS, {})

    found = merged(file, [Result("1m_builtin_epoch_ms", 200.0, "ms")])

    values = {result.name: result.value for result in found}
    assert values["1m_builtin_epoch_ms"] == 200
    assert values["bytes_per_key_builtin"] == 357
    assert len(found) == len(RESULTS)
    assert isinstance(found[0], Goal) and found[0] == RESULTS[0]
