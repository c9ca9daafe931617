"""Showing progress: a live table on a terminal, quiet lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from millstream.observe.progress import EpochProgress, Totals

log = logging.getLogger("millstream")
_LOG_EVERY = 5.0


class Display(Protocol):
    """Shows the epochs of a run as they are committed."""

    def show(self, report: EpochProgress) -> None:
        """Display one committed epoch."""

    def close(self, totals: Totals) -> None:
        """End the display; idempotent."""


def display_for(workflow: str, wanted: bool | None) -> Display:
    """A live display on a terminal (or when wanted), a log otherwise."""
    if wanted or (wanted is None and sys.stderr.isatty()):
        return LiveDisplay(workflow)
    return LogDisplay(workflow)


class LogDisplay:
    """At most one line in five seconds, at level INFO."""

    def __init__(self, workflow: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._workflow = workflow
        self._clock = clock
        self._last: float | None = None
        self._closed = False

    def show(self, report: EpochProgress) -> None:
        now = self._clock()
        if self._last is None or now - self._last >= _LOG_EVERY:
            self._last = now
            log.info("%s: %s", self._workflow, _line(report))

    def close(self, totals: Totals) -> None:
        if not self._closed:
            self._closed = True
            log.info(
                "%s: ended after %d epochs, %d rows", self._workflow, totals.epochs, totals.rows
            )


def _line(report: EpochProgress) -> str:
    rate = report.rows / report.seconds if report.seconds else 0.0
    return f"epoch {report.epoch} in {report.seconds:.3f} s, {rate:,.0f} rows/s"


class LiveDisplay:
    """A table that is redrawn with every epoch."""

    def __init__(self, workflow: str, console: Console | None = None) -> None:
        self._workflow = workflow
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._started = False
        self._epochs = 0
        self._rows = 0

    def show(self, report: EpochProgress) -> None:
        self._epochs += 1
        self._rows += report.rows
        if not self._started:
            self._started = True
            self._live.start()
        self._live.update(self._table(report))

    def _table(self, report: EpochProgress) -> Table:
        title = (
            f"{self._workflow}: epoch {report.epoch} in {report.seconds * 1000:,.0f} ms, "
            f"{report.nodes} nodes, {report.node_memory / 2**20:,.0f} MiB, {self._rows:,} rows"
        )
        table = Table(title=title, title_justify="left")
        for column in ("job", "rows/s", "keys", "outputs", "reduce", "state keys"):
            table.add_column(column, justify="left" if column == "job" else "right")
        for name, job in report.jobs.items():
            table.add_row(
                name,
                f"{job.rows_per_second(report.seconds):,.0f}",
                f"{job.keys:,}",
                f"{job.outputs:,}",
                f"{job.reduce_seconds * 1000:,.0f} ms",
                f"{job.state_keys:,}",
            )
        return table

    def close(self, totals: Totals) -> None:
        if self._started:
            self._started = False
            self._live.stop()
            self._console.print(
                f"{self._workflow}: {totals.epochs:,} epochs, {totals.rows:,} rows, "
                f"{totals.rows_per_second:,.0f} rows/s, p50 {totals.latency_p50 * 1000:,.0f} ms, "
                f"p99 {totals.latency_p99 * 1000:,.0f} ms, {totals.state_keys:,} keys of state"
            )
