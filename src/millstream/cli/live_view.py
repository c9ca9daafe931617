"""``millstream top``: a running workflow in the terminal, as it changes."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.api.contract import Events, EventView, Snapshot
from millstream.checkpoints.tables import as_text
from millstream.cli.argument_types import seconds
from millstream.cli.commands import add_command
from millstream.cli.control_text import backlog, progress
from millstream.cli.control_text import event as event_text
from millstream.cli.run_client import connect

_SHOWN_EVENTS = 8
_ID = 8


def add_to(commands: Any) -> None:
    """Add ``top``."""
    about = "watch a running workflow: rates, latencies, nodes and events, until Ctrl-C"
    parser = add_command(commands, "top", _top, about, "millstream top wordcount")
    parser.add_argument(
        "--every", type=seconds, default=1.0, metavar="SECONDS", help="default: %(default)s"
    )


def _top(options: argparse.Namespace) -> int:
    client = connect(options).client
    if options.json or not sys.stdout.isatty():
        print(as_text(asdict(client.snapshot())), flush=True)
        return 0
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            events = client.get("/events", Events, limit=_SHOWN_EVENTS).events
            live.update(view(client.snapshot(), events), refresh=True)
            time.sleep(max(options.every, 0.2))


def view(now: Snapshot, events: list[EventView]) -> Group:
    """Everything that fits on a screen."""
    through = now.throughput
    heading = Text.assemble(
        (now.run.workflow, "bold"),
        f"  {now.run.phase}, epoch {now.run.committed}, {progress(now)}\n",
        f"{through.rows_per_second:,.0f} rows/s   epochs p50 {1000 * through.latency_p50:,.0f} ms, "
        f"p99 {1000 * through.latency_p99:,.0f} ms   pressure {through.pressure:.2f}   "
        f"{through.state_keys:,} keys, {through.state_bytes / 2**20:,.1f} MiB\n"
        f"backlog {backlog(now)}",
    )
    parts: list[Any] = [heading, _nodes(now), _jobs(now)]
    if now.hot_keys:
        hot = ", ".join(f"{key.job}/{key.key} {key.share:.0%}" for key in now.hot_keys[:5])
        parts.append(Text(f"hot keys: {hot}"))
    parts += [Text(event_text(event), overflow="ellipsis", no_wrap=True) for event in events]
    return Group(*parts)


def _nodes(now: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("NODE", "ROLE", "HOST"):
        table.add_column(name)
    for name in ("SLOTS", "CPU", "QUEUE s", "MEMORY MiB", "ROWS"):
        table.add_column(name, justify="right")
    for node in now.nodes:
        table.add_row(
            node.id[:_ID],
            f"{node.role}, slow" if node.is_slow else node.role,
            node.host,
            str(node.slots),
            _figure(node.cpu, "{:.0%}"),
            _figure(node.queue, "{:.2f}"),
            _figure(None if node.memory is None else node.memory / 2**20, "{:,.0f}"),
            _figure(node.rows, "{:,.0f}"),
        )
    return table


def _jobs(now: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("JOB")
    for name in ("ROWS/s", "OUT/s", "KEYS", "LAG s"):
        table.add_column(name, justify="right")
    for job in now.jobs:
        table.add_row(
            job.name,
            f"{job.rows_per_second:,.0f}",
            f"{job.outputs_per_second:,.0f}",
            f"{job.state_keys:,}",
            _figure(job.lag, "{:.1f}"),
        )
    return table


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
