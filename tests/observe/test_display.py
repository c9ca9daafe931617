from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from millstream.observe.display import LiveDisplay, LogDisplay, display_for
from millstream.observe.progress import EpochProgress, JobProgress, Progress


def report(epoch: int) -> EpochProgress:
    return EpochProgress(
        epoch=epoch,
        tries=1,
        seconds=0.5,
        jobs={"words": JobProgress(1000, 20, 30, 0.25, 12345)},
        nodes=2,
        node_memory=3 * 2**20,
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_log_has_at_most_a_line_in_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")
    times = iter([0.0, 1.0, 4.9, 5.0, 9.9, 11.0])
    display = LogDisplay("flow", clock=lambda: next(times))

    for epoch in range(6):
        display.show(report(epoch))

    assert lines(caplog) == [f"flow: epoch {epoch} in 0.500 s, 2,000 rows/s" for epoch in (0, 3, 5)]


def test_the_end_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")
    progress = Progress()
    progress.add(report(0))
    display = LogDisplay("flow")

    display.close(progress.totals)
    display.close(progress.totals)

    assert lines(caplog) == ["flow: ended after 1 epochs, 1000 rows"]


def test_the_live_table_names_jobs_and_ends_with_a_summary() -> None:
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, color_system=None, highlight=False, width=120
    )
    display = LiveDisplay("flow", console)
    progress = Progress()
    progress.listen(display.show)

    progress.add(report(0))
    progress.add(report(1))
    display.close(progress.totals)
    shown = screen.getvalue()
    display.close(progress.totals)

    assert screen.getvalue() == shown
    for text in ("words", "12,345", "epoch 1", "2 nodes", "3 MiB", "2 epochs, 2,000 rows"):
        assert text in shown


def test_a_live_display_without_epochs_ends_silently() -> None:
    screen = io.StringIO()

    LiveDisplay("flow", Console(file=screen)).close(Progress().totals)

    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("wanted", "terminal", "expected"),
    [
        (True, False, LiveDisplay),
        (None, True, LiveDisplay),
        (None, False, LogDisplay),
        (False, True, LogDisplay),
    ],
)
def test_a_terminal_gets_the_table_by_default(
    wanted: bool | None, terminal: bool, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)

    assert type(display_for("flow", wanted)) is expected
