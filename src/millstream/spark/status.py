"""The status of a run at one moment, as its handle gives it and notebooks show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from millstream.elastic.load import NodeLoad
from millstream.markup import Html, block, facts, note, table
from millstream.observe.progress import EpochProgress, JobProgress, Totals
from millstream.observe.source_backlog import SourceBacklog
from millstream.ring.ring import NodeId
from millstream.wire.control import NodeStatus

Phase = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Status:
    """The status of a run: ``durable`` is the newest epoch in the store, if there is one.

    Nodes that are ``slow`` answer pings, but not calls in time; ``waits`` lists what has been
    waiting for more than ten seconds, and why. Of the ``lost`` nodes, ``fenced_alive`` are those
    that answered when they were fenced, or afterwards. ``target`` is how many nodes shall be
    active, and ``pending`` how many slots are on their way to another owner. ``totals`` has sums
    and rates over the run, ``last`` is the newest epoch, and ``load`` that of each node.
    ``backlog`` is what waits at each source; its amount is None where the source does not
    report it.
    """

    workflow: str
    phase: Phase
    committed: int
    ring: int
    nodes: list[NodeStatus] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    drawing: str = ""
    incarnation: int = 1
    durable: int | None = None
    slow: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    fenced_alive: list[str] = field(default_factory=list)
    target: int = 0
    pending: int = 0
    totals: Totals | None = None
    last: EpochProgress | None = None
    load: Mapping[NodeId, NodeLoad] = field(default_factory=dict)
    backlog: list[SourceBacklog] = field(default_factory=list)

    @property
    def html(self) -> Html:
        """Epochs, rates, nodes and jobs as tables."""
        parts = [
            facts(f"Run of {self.workflow}: {self.phase}", self._facts()),
            table("Nodes", _NODE_HEADERS, (self._node(node) for node in self.nodes)),
        ]
        if self.last is not None and self.last.jobs:
            jobs = [_job(name, job, self.last.seconds) for name, job in self.last.jobs.items()]
            parts.append(table(f"Jobs in epoch {self.last.epoch}", _JOB_HEADERS, jobs))
        return block(*parts, *(note(f"Waiting: {wait}") for wait in self.waits))

    def _repr_html_(self) -> str:
        return self.html

    def _facts(self) -> Iterator[tuple[str, object]]:
        active = sum(node.role == "active" for node in self.nodes)
        yield "Epoch", _epochs(self.committed, self.durable)
        yield (
            "Rates",
            None if self.totals is None or not self.totals.epochs else _rates(self.totals),
        )
        yield "Nodes", f"{active} of {self.target} active"
        yield "Slots", f"{self.pending:,} pending, ring {self.ring}"
        yield "Slow nodes", _ids(self.slow)
        yield "Lost nodes", _ids(self.lost)

    def _node(self, node: NodeStatus) -> Sequence[object]:
        load = self.load.get(NodeId(node.node))
        return (
            node.node[:_ID],
            node.role,
            node.slots,
            node.copies,
            node.in_sync,
            None if load is None else round(load.tuples),
            None if load is None else load.cpu,
            node.host,
            node.executor,
        )


_ID = 8  # characters of a node's id
_NODE_HEADERS = (
    "Node",
    "Role",
    "Slots",
    "Copies",
    "In sync",
    "Rows per epoch",
    "CPU",
    "Host",
    "Executor",
)
_JOB_HEADERS = ("Job", "Rows", "Rows/s", "Outputs", "Keys in state", "Watermark")


def _epochs(committed: int, durable: int | None) -> str:
    if committed < 0:
        return "none committed"
    stored = "" if durable is None or durable < 0 else f", {durable:,} in the store"
    return f"{committed:,} committed{stored}"


def _rates(totals: Totals | None) -> str | None:
    if totals is None or not totals.epochs:
        return None
    return (
        f"{totals.rows_per_second:,.0f} rows/s, epochs take {1000 * totals.latency_p50:,.0f} ms "
        f"(p99 {1000 * totals.latency_p99:,.0f} ms)"
    )


def _ids(nodes: Sequence[str]) -> str | None:
    return ", ".join(node[:_ID] for node in nodes) or None


def _job(name: str, job: JobProgress, seconds: float) -> Sequence[object]:
    watermark = None if job.watermark is None else f"{job.watermark:%Y-%m-%d %H:%M:%S}Z"
    rate = round(job.rows_per_second(seconds))
    return name, job.rows, rate, job.outputs, job.state_keys, watermark
