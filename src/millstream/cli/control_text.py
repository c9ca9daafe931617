"""What the commands for running workflows print for people."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.cli.argument_types import slots_text
from millstream.cli.text_table import moment, table
from millstream.elastic.events import Event
from millstream.wire.control import RunDescription
from millstream.wire.run_registry import RegisteredRun

_LONGEST_OWNED = 40
_ID = 8  # characters of a node's id


def processes(
    runs: Sequence[RegisteredRun],
    labels: Sequence[str],
    described: Sequence[RunDescription | None],
) -> str:
    """The running workflows."""
    if not runs:
        return "no workflow is running"
    rows = [
        (
            label,
            run.process.pid,
            run.process.host,
            _moment(run.started),
            None if now is None else now.committed,
            "no answer" if now is None else f"{now.active} of {now.target}",
        )
        for run, label, now in zip(runs, labels, described, strict=True)
    ]
    return table(("NAME", "PID", "HOST", "STARTED", "EPOCH", "NODES"), rows)


def status(run: RegisteredRun, now: RunDescription) -> str:
    """A running workflow and its nodes."""
    epochs = [f"{now.committed} committed" if now.committed >= 0 else "none committed"]
    if now.under_way is not None:
        epochs.append(f"{now.under_way} under way")
    if now.durable is not None:
        epochs.append(f"{now.durable} in the store" if now.durable >= 0 else "none in the store")
    lines = [
        f"workflow  {run.workflow}, incarnation {now.incarnation}",
        f"driver    process {run.process.pid} on {run.process.host}, "
        f"started {_moment(run.started)}",
        f"epochs    {', '.join(epochs)}",
        f"nodes     {progress(now)}, ring {now.ring}",
    ]
    columns = ("NODE", "ROLE", "SLOTS", "COPIES", "IN SYNC", "HOST", "EXECUTOR", "PID", "OWNS")
    rows = [
        (
            node.node[:_ID],
            node.role,
            node.slots,
            node.copies,
            node.in_sync,
            node.host,
            node.executor,
            node.pid,
            _shortened(slots_text(now.owned.get(node.node, ()))),
        )
        for node in now.nodes
    ]
    lines += ["", table(columns, rows)]
    notes = [f"lost: {_ids(now.lost)}"] if now.lost else []
    if now.fenced_alive:
        notes.append(f"fenced while alive: {_ids(now.fenced_alive)}")
    if now.slow:
        notes.append(f"slow: {_ids(now.slow)}")
    notes += [f"waits: {wait}" for wait in now.waits]
    if now.failure is not None:
        notes.append(f"failed: {now.failure}")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def progress(now: RunDescription) -> str:
    """How far changes have come."""
    pending = f"{now.pending} of {now.slots}" if now.pending else "no"
    leaving = sum(node.role == "leaving" for node in now.nodes)
    parts = [f"{now.active} of {now.target} active"]
    if leaving:
        parts.append(f"{leaving} leaving")
    return ", ".join([*parts, f"{pending} slots pending"])


def event(happened: Event) -> str:
    """One event, on a line."""
    when = f"epoch {happened.epoch}" if happened.epoch >= 0 else "start"
    return f"{_moment(happened.time)}  {when:<10}  {happened.kind:<10}  {happened.text}"


def _moment(seconds: float) -> str:
    return moment(round(seconds * 1_000_000))


def _ids(nodes: Sequence[str]) -> str:
    return ", ".join(node[:_ID] for node in nodes)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_OWNED else f"{text[: _LONGEST_OWNED - 1]}…"
