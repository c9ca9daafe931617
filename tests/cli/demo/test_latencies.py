from __future__ import annotations

from millstream.cli.demo.latencies import Scene, table
from millstream.cli.demo.story import summary
from millstream.observe.progress import Totals


def test_a_scene_has_the_median_before_the_longest_during_and_the_median_after() -> None:
    seconds = [9.0, *[0.1] * 10, 0.2, 0.7, 0.3, *[0.4] * 10, 9.0]

    heading, row = table([Scene("killed", 11, 13, "replaced")], seconds)

    assert heading.split() == ["before", "longest", "after"]
    assert row.split() == ["killed", "0.10", "s", "0.70", "s", "0.40", "s", "replaced"]


def test_a_scene_at_the_very_end_has_no_latency_after_it() -> None:
    _, row = table([Scene("killed", 1, 2)], [0.1, 0.5, 0.6])

    assert row.split() == ["killed", "0.10", "s", "0.60", "s"]


def test_the_summary_has_rates_and_latencies() -> None:
    totals = Totals(
        epochs=4, rows=8000, busy_seconds=2.0, latency_p50=0.5, latency_p99=1.25, state_keys=70
    )

    reported = summary(8000, 70, 2000.0, totals)

    assert [line.split(maxsplit=1)[0] for line in reported] == ["words", "words", "epochs", "epoch"]
    assert "2,000" in reported[1]
    assert reported[3].endswith("p50 0.50 s, p99 1.25 s")
