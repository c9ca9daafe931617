"""A sample of the chaos for drivers (``make chaos-driver`` has all), and what judges it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos import moments
from tests.chaos.driver_plans import SEEDS, DriverPlan, Start, plan_of
from tests.chaos.driver_runner import run_once
from tests.chaos.moments import RESTART, Fault, Moment, arrange, points
from tests.chaos.processes import marked
from tests.chaos.reader import Reader
from tests.chaos.windowed import in_one, lines_that_differ, windowed_answer
from tests.chaos.workload import Shape


def quick(
    seed: int,
    *drivers: Moment | None,
    interval: bool = False,
    two: bool = False,
    windows: bool = False,
) -> DriverPlan:
    starts = [Start(nodes=2 + at, moment=moment) for at, moment in enumerate(drivers)]
    return DriverPlan(
        seed=seed,
        durability="interval" if interval else "epoch",
        starts=tuple(starts),
        order="while it runs" if two else None,
        shape=Shape(builtin=True, two_sinks=True, windows=windows),
        epochs=4,
    )


SAMPLE = {
    "killed between manifest and publication": quick(
        100, Moment("committed", 2, 0.0, "kill"), None
    ),
    "killed while nodes write": quick(
        101, Moment("persisting", 1, 0.02, "kill driver"), None, interval=True
    ),
    "stopped, replaced and woken": quick(
        102, Moment("staged", 3, 0.0, "stop driver"), None, two=True
    ),
    # Some windows were closed by then, and must not come again.
    "killed with open windows": quick(
        103, Moment("committing", 4, 0.0, "kill"), None, windows=True
    ),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_whatever_happens_to_a_driver_the_answer_is_that_of_a_batch(name: str) -> None:
    outcome = run_once(SAMPLE[name])

    assert outcome.exact, outcome.report()
    assert outcome.landed == 1, outcome.report()


# -- what judges the runs ----------------------------------------------------------------------


def test_twenty_seeds_pass_all_points_in_both_durabilities() -> None:
    for first in (0, SEEDS):
        plans = [plan_of(seed) for seed in range(first, first + SEEDS)]

        for durability in ("epoch", "interval"):
            mine = [plan for plan in plans if plan.durability == durability]
            kills = [s.moment for plan in mine if not plan.order for s in plan.starts if s.moment]
            assert {moment.point for moment in kills} == {*points(durability), *RESTART}
            assert {moment.fault for moment in kills} == {"kill", "kill driver", "kill jvm"}
            assert len({plan.order for plan in mine}) == 4
        assert {plan.store for plan in plans} == {"log", "files", "redis"}
        assert len({plan.master for plan in plans}) == 2
        assert {plan.source for plan in plans} == {"files", "recording"}


def test_a_plan_is_its_seeds_alone() -> None:
    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(27)


@pytest.mark.parametrize("point", [*points("epoch").items(), *RESTART.items()], ids=lambda p: p[0])
def test_a_fault_happens_at_the_chosen_turn(
    point: tuple[str, moments.Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    injected: list[Fault] = []
    monkeypatch.setattr(moments, "inject", lambda fault, say: injected.append(fault))
    module, _, path = point[1].function.partition(":")
    owner = importlib.import_module(module)
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    monkeypatch.setattr(owner, name, lambda: "done")

    arrange(Moment(point[0], 2, 0.0, "kill"), print)

    assert [(getattr(owner, name)(), len(injected)) for _ in range(3)] == [
        ("done", 0),
        ("done", 1),
        ("done", 1),
    ]


def publish(sink: Path, epoch: int, *values: int) -> Path:
    folder = sink / f"epoch={epoch:012d}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"key": list(values)}), folder / "part.parquet")
    return folder


def test_a_reader_remembers_what_was_visible(tmp_path: Path) -> None:
    reader = Reader([tmp_path / "out"])
    publish(tmp_path / "out", 0, 3, 1)
    reader.look()
    publish(tmp_path / "out", 1, 2)
    reader.look()

    assert reader.rows == {"out": {0: [(1,), (3,)], 1: [(2,)]}}
    assert reader.problems == []


def test_a_reader_sees_what_is_withdrawn_or_changes(tmp_path: Path) -> None:
    reader = Reader([tmp_path / "out"])
    first, second = publish(tmp_path / "out", 0, 1), publish(tmp_path / "out", 1, 2)
    reader.look()
    (first / "part.parquet").rename(tmp_path / "away")
    first.rmdir()
    reader.look()
    publish(tmp_path / "out", 0, 1)
    (second / "part.parquet").unlink()
    second.rmdir()
    publish(tmp_path / "out", 1, 5)
    reader.look()

    assert reader.problems == [
        "out epoch=000000000000 was withdrawn",
        "out epoch=000000000001 changed from [(2,)] to [(5,)]",
    ]


def test_the_processes_of_a_driver_are_known_by_their_mark() -> None:
    mark = os.urandom(8).hex()
    waiting = "import sys; sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", waiting],
        stdin=subprocess.PIPE,
        env={**os.environ, moments.MARK: mark},
    )
    try:
        assert marked(mark) == [process.pid]
    finally:
        process.communicate()
    assert marked(mark) == []


def test_repeated_missing_and_wrong_windows_are_reported() -> None:
    expected = windowed_answer(7, 2, Shape(builtin=True, two_sinks=True, windows=True)).rows
    first, second, third, *_ = expected["longer"][-1]
    others = [row for row in expected["longer"][-1] if row not in (second, third)]
    changed = (*third[:2], third[2] + 1)
    found = in_one({**expected, "longer": {4: [first, *others], 9: [changed]}})

    assert sorted(lines_that_differ(expected, expected)) == []
    assert sorted(lines_that_differ(found, expected)) == sorted(
        f"rows of 'longer': {row} came {times} times, expected {wanted}"
        for row, times, wanted in [(first, 2, 1), (second, 0, 1), (third, 0, 1), (changed, 1, 0)]
    )
