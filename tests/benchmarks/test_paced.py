"""Records come at their rate, and each has a latency."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paced import Pace, Writer, latencies

PACE = Pace(rate=1000, per_file=50, seconds=0.2)


def test_a_record_takes_from_when_it_is_due_to_the_first_output_that_has_it() -> None:
    found = latencies(PACE, 100.0, [100.15, 100.3], [99, 199], settling=0.0)

    assert len(found) == 200
    assert found[0] == pytest.approx(0.15)
    assert found[99] == pytest.approx(0.15 - 0.099)
    assert found[100] == pytest.approx(0.3 - 0.1)


def test_records_of_the_first_seconds_are_left_out() -> None:
    assert len(latencies(PACE, 0.0, [1.0], [199], settling=0.15)) == 50


def test_all_records_are_written_in_order(tmp_path: Path) -> None:
    with Writer(PACE, tmp_path / "in") as writer:
        writer.join()

    files = sorted((tmp_path / "in").iterdir())
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert len(files) == PACE.files == 4
    assert [int(line.split()[1]) for line in lines] == list(range(PACE.records))
