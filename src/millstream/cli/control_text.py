"""What the commands for running workflows print for people."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.api.contract import BacklogView, EventView, Snapshot
from millstream.cli.argument_types import slots_text
from millstream.cli.text_table import moment, table
from millstream.wire.run_registry import RegisteredRun

_LONGEST_OWNED = 40
_ID = 8  # characters of a node's id


def processes(
    runs: Sequence[RegisteredRun],
    labels: Sequence[str],
    described: Sequence[Snapshot | None],
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
            None if now is None else now.run.committed,
            "no answer" if now is None else f"{now.run.active} of {now.run.target}",
        )
        for run, label, now in zip(runs, labels, described, strict=True)
    ]
    return table(("NAME", "PID", "HOST", "STARTED", "EPOCH", "NODES"), rows)


def status(run: RegisteredRun | None, now: Snapshot) -> str:
    """A running workflow and its nodes."""
    state, through = now.run, now.throughput
    epochs = [f"{state.committed} committed" if state.committed >= 0 else "none committed"]
    if state.under_way is not None:
        epochs.append(f"{state.under_way.epoch} under way")
    if state.durable is not None:
        stored = f"{state.durable} in the store" if state.durable >= 0 else "none in the store"
        epochs.append(stored)
    lines = [f"workflow  {state.workflow}, {state.phase}, incarnation {state.incarnation}"]
    if run is not None:
        lines.append(
            f"driver    process {run.process.pid} on {run.process.host}, "
            f"started {_moment(run.started)}"
        )
    lines += [
        f"epochs    {', '.join(epochs)}",
        f"nodes     {progress(now)}, ring {now.ring.version}",
        f"input     {through.rows_per_second:,.0f} rows/s, epochs take "
        f"{1000 * through.latency_p50:,.0f} ms (p99 {1000 * through.latency_p99:,.0f})",
        f"backlog   {backlog(now)}",
    ]
    columns = ("NODE", "ROLE", "SLOTS", "COPIES", "IN SYNC", "HOST", "EXECUTOR", "PID", "OWNS")
    owned = _owned(now)
    rows = [
        (
            node.id[:_ID],
            node.role,
            node.slots,
            node.copies,
            node.in_sync,
            node.host,
            node.executor,
            node.pid,
            _shortened(slots_text(owned.get(node.id, ()))),
        )
        for node in now.nodes
    ]
    lines += ["", table(columns, rows)]
    notes = [f"lost: {_ids(state.lost)}"] if state.lost else []
    if state.fenced_alive:
        notes.append(f"fenced while alive: {_ids(state.fenced_alive)}")
    slow = [node.id for node in now.nodes if node.is_slow]
    if slow:
        notes.append(f"slow: {_ids(slow)}")
    notes += [f"waits: {wait}" for wait in state.waits]
    if state.failure is not None:
        notes.append(f"failed: {state.failure}")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def backlog(now: Snapshot) -> str:
    """What waits at each source."""
    return "; ".join(map(_waiting, now.backlog)) or "not known"


def _waiting(each: BacklogView) -> str:
    if each.amount is None:
        return f"{each.source} not known"
    epochs = "" if each.epochs is None else f" ({each.epochs:,} epochs)"
    return f"{each.source} {each.amount:,} {each.unit}{epochs}"


def _owned(now: Snapshot) -> dict[str, list[range]]:
    """The slots of each node, in runs."""
    found: dict[str, list[range]] = {}
    for arc in now.ring.arcs:
        runs = found.setdefault(arc.owner, [])
        if runs and runs[-1].stop == arc.start:  # only the copies differ
            runs[-1] = range(runs[-1].start, arc.stop)
        else:
            runs.append(range(arc.start, arc.stop))
    return found


def progress(now: Snapshot) -> str:
    """How far changes have come."""
    pending = f"{now.run.pending} of {now.ring.slots}" if now.run.pending else "no"
    leaving = sum(node.role == "leaving" for node in now.nodes)
    parts = [f"{now.run.active} of {now.run.target} active"]
    if leaving:
        parts.append(f"{leaving} leaving")
    return ", ".join([*parts, f"{pending} slots pending"])


def event(happened: EventView) -> str:
    """One event, on a line."""
    when = f"epoch {happened.epoch}" if happened.epoch >= 0 else "start"
    return f"{_moment(happened.time)}  {when:<10}  {happened.kind:<10}  {happened.text}"


def _moment(seconds: float) -> str:
    return moment(round(seconds * 1_000_000))


def _ids(nodes: Sequence[str]) -> str:
    return ", ".join(node[:_ID] for node in nodes)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_OWNED else f"{text[: _LONGEST_OWNED - 1]}…"
