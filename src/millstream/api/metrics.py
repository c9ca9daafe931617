"""The metrics of a run, in the text format of Prometheus (version 0.0.4), made from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.api.contract import Snapshot

METRICS = "/metrics"
_QUANTILES = {"0.5": "latency_p50", "0.95": "latency_p95", "0.99": "latency_p99"}


@dataclass(frozen=True)
class Metric:
    """A metric with its values, each with its labels; ``name`` is without the prefix."""

    name: str
    kind: str
    help: str
    values: list[tuple[dict[str, str], float]]


def exposition(now: Snapshot) -> str:
    """The text that Prometheus scrapes."""
    common = {"workflow": now.run.workflow}
    lines: list[str] = []
    for metric in metrics_of(now):
        name = f"millstream_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels(common | labels)} {value!r}" for labels, value in metric.values]
    return "\n".join(lines) + "\n"


def metrics_of(now: Snapshot) -> Iterator[Metric]:
    """All metrics of a run."""
    run, through = now.run, now.throughput
    yield _one("up", "gauge", "1 while the workflow runs", float(run.phase == "running"))
    yield _one("epochs_total", "counter", "Committed epochs", through.epochs)
    yield _one("rows_total", "counter", "Values fed to jobs", through.rows)
    yield _one("rows_per_second", "gauge", "Values fed to jobs", through.rows_per_second)
    yield _one("committed_epoch", "gauge", "The newest committed epoch", run.committed)
    yield _one("pressure", "gauge", "Epoch time over arrival time of its input", through.pressure)
    yield _one("state_bytes", "gauge", "Estimated size of the state", through.state_bytes)
    yield Metric(
        "epoch_seconds",
        "gauge",
        "Time of the newest epochs, by quantile",
        [({"quantile": at}, getattr(through, name)) for at, name in _QUANTILES.items()],
    )
    if now.epochs:
        last = now.epochs[-1]
        phases = [({"phase": phase.name}, phase.seconds) for phase in last.phases]
        yield Metric("epoch_phase_seconds", "gauge", "Phases of the newest epoch", phases)
        yield _one("last_commit_timestamp_seconds", "gauge", "When it committed", last.time)
    yield from _nodes(now)
    yield from _jobs(now)
    if now.checkpoint is not None:
        kept = now.checkpoint
        yield _one("checkpoint_epoch", "gauge", "The newest epoch in the store", kept.durable)
        yield _one("checkpoint_written_bytes", "gauge", "Written by living nodes", kept.written)
        if kept.time is not None:
            help_ = "When the newest checkpoint was written"
            yield _one("checkpoint_timestamp_seconds", "gauge", help_, kept.time)
    yield from _backlog(now)


def _nodes(now: Snapshot) -> Iterator[Metric]:
    roles: list[str] = [node.role for node in now.nodes]
    counts = [({"role": role}, float(roles.count(role))) for role in sorted(set(roles))]
    yield Metric("nodes", "gauge", "Living nodes", counts)
    yield _one("nodes_target", "gauge", "Nodes that shall be active", now.run.target)
    yield _one("nodes_lost_total", "counter", "Nodes declared dead", len(now.run.lost))
    yield _one("slots_pending", "gauge", "Slots on their way to another owner", now.run.pending)
    help_ = "Slots with fewer complete copies than replicas"
    yield _one("slots_out_of_sync", "gauge", help_, now.ring.under_replicated)
    figures = {
        "slots": "Slots that a node owns",
        "cpu": "Parts of a core that a node uses",
        "queue": "Seconds that feeds waited for a node, per epoch",
        "memory": "Memory of a node, in bytes",
    }
    for name, about in figures.items():
        found = [
            ({"node": node.id[:8], "host": node.host}, float(value))
            for node in now.nodes
            if (value := getattr(node, name)) is not None
        ]
        yield Metric(f"node_{name}", "gauge", about, found)


def _backlog(now: Snapshot) -> Iterator[Metric]:
    """A source that does not report its backlog has no values."""
    waiting = [
        ({"source": each.source, "unit": each.unit}, float(each.amount))
        for each in now.backlog
        if each.amount is not None
    ]
    yield Metric("backlog", "gauge", "What sources have that no epoch has read", waiting)
    epochs = [
        ({"source": each.source}, float(each.epochs))
        for each in now.backlog
        if each.epochs is not None
    ]
    yield Metric("backlog_epochs", "gauge", "Epochs that it takes to read the backlog", epochs)


def _jobs(now: Snapshot) -> Iterator[Metric]:
    figures = {
        "rows_per_second": "Values fed to a job",
        "outputs_per_second": "Outputs of a job",
        "state_keys": "Keys of a job",
        "late": "Late values of the newest epoch",
        "lag": "Seconds of the watermark behind the clock",
    }
    for name, about in figures.items():
        found = [
            ({"job": job.name}, float(value))
            for job in now.jobs
            if (value := getattr(job, name)) is not None
        ]
        yield Metric(f"job_{name}", "gauge", about, found)


def _one(name: str, kind: str, about: str, value: float) -> Metric:
    return Metric(name, kind, about, [({}, float(value))])


def _labels(labels: dict[str, str]) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
