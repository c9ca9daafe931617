"""The benchmark of the stores, in small: all of them run, and what it says adds up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import stores
from benchmarks.goals import Goal
from benchmarks.peers.stores import SCHEMES
from benchmarks.store_work import Share, Timed, drive, load
from millstream.stores.registry import open_store

SMALL = replace(
    stores.QUICK,
    keys=(20, 4_000),
    fewer={"files": 40},
    shapes=((1, 100), (2, 100)),
    seconds=0.05,
    sustained=0.2,
    opens=2,
    tail=1_000_000,
)


@pytest.mark.slow
def test_all_stores_are_measured_and_compared(tmp_path: Path) -> None:
    found = {result.name: result for result in stores.stores(tmp_path, SMALL)}

    for scheme in SCHEMES:
        many = 40 if scheme == "files" else "4k"
        for cell in (f"{scheme}_20_1w_b100", f"{scheme}_{many}_2w_b100"):
            assert found[f"{cell}_operations_per_second"].value > 0
            assert 0 < found[f"{cell}_put_p50_ms"].value <= found[f"{cell}_put_p99_ms"].value
    ratio = found["log_20_1w_b100_writes_per_second"].value / (
        found["files_20_1w_b100_writes_per_second"].value
    )
    assert found["log_vs_files_writes"].value == ratio
    assert found["log_vs_files_writes_4k_40_2w_b100"].value > 0
    assert found["log_4k_vs_20_keys"].value > 0
    parts = [found[f"index_rebuild_4k_{part}_ms"].value for part in ("read", "checksum", "build")]
    assert 0 < sum(parts) < found["index_rebuild_4k_ms"].value
    assert found["index_rebuild_4k_tail_scan_ms"].value > found["index_rebuild_4k_scan_ms"].value
    goals = {name for name, result in found.items() if isinstance(result, Goal)}
    assert goals == {
        "log_vs_files_writes",
        "log_vs_files_reads",
        "log_4k_vs_20_keys",
        "index_rebuild_4k_ms",
    }


def test_a_writer_keeps_to_its_share_and_times_every_call(tmp_path: Path) -> None:
    url = f"log://{tmp_path}/store"
    load(url, "loader", 50)
    before = _values(url)
    ready = []

    timed = drive(
        Share(url=url, writer="one", keys=50, first=1, step=2, batch=10, seconds=0, calls=40),
        lambda: ready.append(True),
    )

    assert (len(timed.puts), len(timed.gets), len(timed.later_gets)) == (36, 4, 40)
    assert ready == [True, True]
    after = _values(url)
    changed = {number for number, value in enumerate(after) if value != before[number]}
    assert changed == set(range(1, 50, 2))


def test_a_value_of_another_key_ends_the_benchmark(tmp_path: Path) -> None:
    url = f"log://{tmp_path}/store"
    load(url, "loader", 2)
    store = open_store(url, "liar")
    values = store.get(["state/word-0000000"])
    store.put({"state/word-0000001": values["state/word-0000000"]})
    store.close()
    share = Share(url=url, writer="one", keys=2, batch=2, seconds=0, calls=10)

    with pytest.raises(SystemExit, match="word-0000001"):
        drive(share, lambda: None)


def test_rates_count_values_over_the_time_of_their_calls() -> None:
    timed = Timed(100, puts=[0.5, 0.5], gets=[0.25], later_gets=[0.1, 0.1])

    assert timed.operations == 300 / 1.25
    assert timed.writes == 200
    assert timed.mixed_reads == 400
    assert timed.reads == 1000


@pytest.mark.parametrize(("value", "met"), [(0.5, False), (1.0, True), (2.0, True), (2.5, False)])
def test_a_goal_has_bounds_on_both_sides(value: float, met: bool) -> None:
    assert Goal("some", value, "times", at_most=2.0, at_least=1.0).met is met


def _values(url: str) -> list[bytes]:
    store = open_store(url, "reader")
    try:
        return [value for _, value in sorted(store.get(store.scan()).items())]
    finally:
        store.close()
