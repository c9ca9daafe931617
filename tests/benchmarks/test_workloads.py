"""Recordings are the same rows for all engines, and answers are compared as multisets."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from benchmarks.peers.entries import DUCKDB
from benchmarks.workloads.catalog import WORKLOADS, Rows
from benchmarks.workloads.sessions import GAP, SESSIONS
from benchmarks.workloads.workload import LATENESS, SPAN, START, read_answer


def rows_of(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_recording_has_its_rows_and_one_of_fewer_epochs_is_a_prefix(
    name: str, tmp_path: Path
) -> None:
    size = Rows(epochs=3, rows_per_epoch=200)

    recording = size.record(name, tmp_path / "all")
    first = recording.first_epochs(1, tmp_path / "first")

    found = {table: rows_of(recording.folder / table) for table in recording.workload.streams}
    assert sum(rows.num_rows for rows in found.values()) == recording.items == 600
    assert (first.epochs, first.items) == (1, 200)
    for table, rows in found.items():
        prefix = rows_of(first.folder / table)
        assert prefix.equals(rows.slice(0, prefix.num_rows))


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_row_is_late_and_every_epoch_reaches_its_end(name: str, tmp_path: Path) -> None:
    recording = Rows(epochs=2, rows_per_epoch=200).record(name, tmp_path)

    for table in recording.workload.streams:
        for file in sorted((tmp_path / table).glob("*.parquet")):
            times = pq.read_table(file)["ts"].to_pylist()
            newest = START
            for time in times:
                newest = max(newest, time)
                assert newest - time < LATENESS
        rows = rows_of(tmp_path / table)
        assert max(rows["ts"].to_pylist()) == START + 2 * SPAN - timedelta(milliseconds=2)


def test_flink_reads_the_same_rows(tmp_path: Path) -> None:
    Rows(epochs=2, rows_per_epoch=200).record("sessions", tmp_path)
    names = csv.ReadOptions(column_names=["id", "amount", "ts"])

    lines = [
        csv.read_csv(tmp_path / "csv" / "clicks" / f"{part}.csv", read_options=names)
        for part in range(2)
    ]

    found, rows = pa.concat_tables(lines), rows_of(tmp_path / "clicks")
    order = [("id", "ascending"), ("amount", "ascending"), ("ts", "ascending")]
    times = rows["ts"].cast(pa.timestamp("us")).cast(pa.timestamp("ns"))
    rows = rows.set_column(2, "ts", times)
    assert found.cast(rows.schema).sort_by(order).equals(rows.sort_by(order))


def test_an_answer_is_a_multiset_without_windows_that_are_still_open(tmp_path: Path) -> None:
    ends = [START + timedelta(seconds=second) for second in (40, 10, 10, 5)]
    columns = {"key": [1, 2, 2, 3], "n": [1, 1, 1, 1], "amount": [5, 6, 6, 7]}
    for folder in ("parquet", "csv"):
        (tmp_path / folder).mkdir()
    zoned = pa.table({**columns, "timing": ["on_time"] * 4, "window_end": ends})
    pq.write_table(zoned, tmp_path / "parquet" / "a.parquet")
    naive = pa.array([end.replace(tzinfo=None) for end in ends], pa.timestamp("ms"))
    plain = pa.table({**columns, "window_end": naive}).take([3, 2, 1, 0])
    unnamed = csv.WriteOptions(include_header=False)
    csv.write_csv(plain, tmp_path / "csv" / "part-0", write_options=unnamed)
    (tmp_path / "csv" / ".part-1.inprogress").write_text("9,9,9,2026-03-01 00:00:01\n")

    found, same = (
        read_answer(SESSIONS, tmp_path / folder, epochs=2) for folder in ("parquet", "csv")
    )

    assert found["key"].to_pylist() == [2, 2, 3]
    assert found.equals(same)


@pytest.mark.skipif(not DUCKDB.is_installed, reason="make peers has not been run")
def test_the_right_sessions_are_those_of_a_loop(tmp_path: Path) -> None:
    recording = Rows(epochs=2, rows_per_epoch=200).record("sessions", tmp_path)
    clicks: dict[int, list[tuple[datetime, int]]] = defaultdict(list)
    for row in rows_of(tmp_path / "clicks").to_pylist():
        clicks[row["id"]].append((row["ts"].replace(tzinfo=None), row["amount"]))
    watermark = START.replace(tzinfo=None) + 2 * SPAN - LATENESS - timedelta(milliseconds=2)
    expected = []
    for user, of_user in clicks.items():
        sessions: list[list[tuple[datetime, int]]] = []
        for time, amount in sorted(of_user):
            if not sessions or time - sessions[-1][-1][0] >= GAP:
                sessions.append([])
            sessions[-1].append((time, amount))
        for session in sessions:
            end = session[-1][0] + GAP
            if end <= watermark:
                expected.append((user, len(session), sum(amount for _, amount in session), end))

    answer = recording.right_answer()

    assert [tuple(row.values()) for row in answer.to_pylist()] == sorted(expected)
    assert len(expected) > 100
