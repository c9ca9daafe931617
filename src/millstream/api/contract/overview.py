"""The run as a whole, its workflow as a graph, and its epochs."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.contract.terms import Phase, VertexKind


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """The epoch that has been admitted and is not committed."""

    epoch: int
    tries: int
    since: float


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The run as a whole.

    ``committed`` is the newest committed epoch (−1: none), ``durable`` the newest in the store, if
    there is one. ``target`` is how many nodes shall be active, ``pending`` how many slots are on
    their way to another owner; a run ``is_settled`` when no change is under way. ``waits`` says
    what has been waiting for more than ten seconds, and why. Of the ``lost`` nodes,
    ``fenced_alive`` are those that still answered.
    """

    workflow: str
    phase: Phase
    incarnation: int
    started: float
    committed: int
    under_way: UnderWay | None
    durable: int | None
    target: int
    active: int
    pending: int
    is_settled: bool
    failure: str | None
    waits: list[str]
    lost: list[str]
    fenced_alive: list[str]


@dataclass(frozen=True, kw_only=True)
class VertexView:
    """A source, step, job or sink; ``name`` is that of a source, job or sink."""

    id: int
    kind: VertexKind
    name: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class EdgeView:
    """A stream from one vertex to another; None for what nobody counts there."""

    source: int
    target: int
    rows_per_second: float | None
    watermark: float | None


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """The workflow, every vertex after those that it reads."""

    vertices: list[VertexView]
    edges: list[EdgeView]


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job in the newest epochs.

    ``late``, ``ahead`` and ``untimed`` are values of the newest epoch that windows rejected. The
    jobs that are ``fused`` into it are reduced along with it, and counted here.
    """

    name: str
    rows_per_second: float
    outputs_per_second: float
    reduce_seconds: float
    state_keys: int
    watermark: float | None
    lag: float | None
    late: int
    ahead: int
    untimed: int
    fused: list[str]


@dataclass(frozen=True, kw_only=True)
class PhaseView:
    """A part of an epoch: ``run`` is Spark's, with map, shuffle, reduce and staged outputs."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochView:
    """A committed epoch."""

    epoch: int
    time: float
    tries: int
    seconds: float
    rows: int
    rejected: int
    nodes: int
    phases: list[PhaseView]


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Rates and latencies over the newest epochs, and sums over the run.

    A latency is the time of an epoch. ``pressure`` is the time of an epoch over the time in which
    its input arrived: above 1, input arrives faster than it is processed.
    """

    rows_per_second: float
    latency_p50: float
    latency_p95: float
    latency_p99: float
    pressure: float
    epochs: int
    rows: int
    state_keys: int
    state_bytes: float


@dataclass(frozen=True, kw_only=True)
class BacklogView:
    """What a source has and no epoch has read yet; ``amount`` is None if it is not known.

    ``epochs`` is how many epochs it takes, if the source limits what an epoch reads.
    """

    source: str
    unit: str
    amount: int | None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """The checkpoint: ``time`` is when its newest epoch was written, None before the first.

    ``written`` is what all nodes have written since they started; ``last`` the records of the
    newest checkpoint, in bytes.
    """

    durable: int
    time: float | None
    last: int | None
    written: int
    records: int
