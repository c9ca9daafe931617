from __future__ import annotations

import logging
import threading

import pytest

from millstream.observe.progress import EpochProgress, JobProgress, Progress, quantile


def report(epoch: int, seconds: float = 1.0, **rows: int) -> EpochProgress:
    jobs = {name: JobProgress(count, 1, 2, 0.5, 10) for name, count in rows.items()}
    return EpochProgress(epoch=epoch, tries=1, seconds=seconds, jobs=jobs, nodes=2)


def test_totals_add_up_the_epochs() -> None:
    progress = Progress()

    progress.add(report(0, 1.0, a=10, b=5))
    progress.add(report(1, 3.0, a=25))

    totals = progress.totals
    assert (totals.epochs, totals.rows, totals.busy_seconds) == (2, 40, 4.0)
    assert totals.rows_per_second == 10.0
    assert totals.state_keys == 10


def test_a_run_without_epochs_has_totals_too() -> None:
    progress = Progress()

    assert progress.last is None and progress.recent == []
    assert (progress.totals.rows_per_second, progress.totals.latency_p99) == (0.0, 0.0)


def test_only_the_newest_reports_are_retained_but_all_are_counted() -> None:
    progress = Progress(retain=3)
    for epoch in range(10):
        progress.add(report(epoch, a=1))

    assert [kept.epoch for kept in progress.recent] == [7, 8, 9]
    assert progress.last is not None and progress.last.epoch == 9
    assert (progress.totals.epochs, progress.totals.rows) == (10, 10)


def test_listeners_hear_every_report_from_then_on() -> None:
    progress, heard = Progress(), list[int]()
    progress.add(report(0))
    progress.listen(lambda found: heard.append(found.epoch))

    progress.add(report(1))
    progress.add(report(2))

    assert heard == [1, 2]


def test_a_failing_listener_is_logged_and_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress, heard = Progress(), list[int]()

    def fail(found: EpochProgress) -> None:
        raise BrokenPipeError("nobody reads")

    progress.listen(fail)
    progress.listen(lambda found: heard.append(found.epoch))

    with caplog.at_level(logging.ERROR, "millstream"):
        progress.add(report(0))

    assert heard == [0] and progress.totals.epochs == 1
    assert "nobody reads" in caplog.text


def test_reports_from_many_threads_are_all_counted() -> None:
    progress = Progress(retain=10)

    def add_many() -> None:
        for epoch in range(200):
            progress.add(report(epoch, a=1))

    threads = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (progress.totals.epochs, progress.totals.rows) == (800, 800)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 51.0), (0.99, 100.0), (1.0, 100.0)]
)
def test_a_quantile_is_the_value_below_which_its_share_lies(share: float, expected: float) -> None:
    values = [float(number) for number in range(100, 0, -1)]

    assert quantile(values, share) == expected
    assert quantile([], share) == 0.0


def test_rates_without_time_are_zero() -> None:
    assert JobProgress(5, 1, 1, 0.0, 1).rows_per_second(0.0) == 0.0
    assert JobProgress(5, 1, 1, 0.0, 1).rows_per_second(2.0) == 2.5
