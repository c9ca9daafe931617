"""The contract of the HTTP API: every JSON object, as a frozen dataclass.

JSON, its validation and the OpenAPI description are made from these types. Times are in seconds
since 1970, durations in seconds, sizes in bytes, CPU in parts of a core. Nodes are named by their
ids; where a request names one, the beginning of its id is enough. Ranges of slots are from
``start`` to before ``stop``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

Right: TypeAlias = Literal["viewer", "operator"]
"""What a token allows: to look, or also to change."""
Phase: TypeAlias = Literal["running", "finished", "stopped", "failed"]
VertexKind: TypeAlias = Literal["source", "step", "job", "sink"]
Role: TypeAlias = Literal["active", "standby", "leaving"]

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
KeyText: TypeAlias = Annotated[str, Meta(max_length=100_000)]

MOST_KEYS = 10_000
MOST_ITEMS = 10_000
MOST_EVENTS = 1000


# -- what is the case -------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node: its own slots, the slots that it has copies of, and its load.

    ``queue`` is how many seconds of feeds waited for it, per epoch. A ``slow`` node answers pings,
    but not calls in time. Load is None before the first epoch of the node.
    """

    id: str
    host: str
    executor: str
    zone: str
    pid: int
    role: Role
    is_slow: bool
    slots: int
    copies: int
    in_sync: int
    cpu: float | None = None
    queue: float | None = None
    waiting: float | None = None
    rows: float | None = None
    reduce_seconds: float | None = None
    memory: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """Where an arc of the ring begins, and the node that owns it up to the next token."""

    slot: int
    node: str


@dataclass(frozen=True, kw_only=True)
class ArcView:
    """Adjacent slots with one owner and the same copies; arcs do not wrap."""

    start: int
    stop: int
    owner: str
    copies: list[str]


@dataclass(frozen=True, kw_only=True)
class PendingMove:
    """Adjacent slots that shall have another owner; ``in_sync`` of them are copied to it."""

    start: int
    stop: int
    source: str
    to: str
    in_sync: int


@dataclass(frozen=True, kw_only=True)
class RingView:
    """The ring in force, and what shall change."""

    version: int
    slots: int
    replicas: int
    tokens: list[TokenView]
    arcs: list[ArcView]
    moves: list[PendingMove]
    under_replicated: int


@dataclass(frozen=True, kw_only=True)
class HotKeyView:
    """A key with a large share of a job's rows."""

    job: str
    key: str
    slot: int
    owner: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything about a run at one moment.

    ``number`` grows with every snapshot that differs from the one before. ``epochs`` are the newest
    fifty, oldest first.
    """

    number: int
    time: float
    run: RunView
    graph: GraphView
    jobs: list[JobView]
    epochs: list[EpochView]
    throughput: Throughput
    backlog: list[BacklogView]
    checkpoint: CheckpointView | None
    nodes: list[NodeView]
    ring: RingView
    hot_keys: list[HotKeyView]


@dataclass(frozen=True, kw_only=True)
class History:
    """Time series: ``series`` has a list as long as ``times`` by each name.

    Points are at least a second apart, and the newest hour or so is retained. Values are None
    where there was nothing to measure.
    """

    times: list[float]
    series: dict[str, list[float | None]]


# -- what happened ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecisionView:
    """What a policy decided: from which figures, with which prediction, and what came of it.

    ``after`` and ``errors`` (by how much predictions were too high) are None until it shows.
    """

    policy: str
    actions: list[str]
    is_dry_run: bool
    inputs: dict[str, Any]
    predicted: dict[str, float]
    after: dict[str, Any] | None
    errors: dict[str, float] | None


@dataclass(frozen=True, kw_only=True)
class EventView:
    """Something that happened: ``kind`` is for tools, ``text`` for people.

    ``epoch`` is the newest that was committed. A decision of a policy has its ``decision``.
    """

    number: int
    time: float
    epoch: int
    kind: str
    text: str
    facts: dict[str, Any]
    decision: DecisionView | None = None


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events, oldest first; pass ``newest`` as ``since`` to get those that follow."""

    events: list[EventView]
    newest: int


# -- state ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StateJob:
    """A job whose state can be read, and the type of its keys, if that is known yet."""

    job: str
    key_type: str | None
    state_keys: int


@dataclass(frozen=True, kw_only=True)
class StateItem:
    """A key, as JSON and as the text by which it is looked up, with its state as JSON.

    ``found`` is false for a key that has no state.
    """

    key: Any
    text: str
    found: bool
    value: Any


@dataclass(frozen=True, kw_only=True)
class StateItems:
    """Keys with their state, all of one committed ``epoch``.

    ``continuation`` gets the next page, of the same epoch; None at the end, and for single keys.
    """

    job: str
    epoch: int
    items: list[StateItem]
    continuation: str | None = None


@dataclass(frozen=True, kw_only=True)
class GetQuery:
    """A key, written as on the command line."""

    job: Name
    key: KeyText


@dataclass(frozen=True, kw_only=True)
class GetManyRequest:
    """Keys, written as on the command line."""

    job: Name
    keys: Annotated[list[KeyText], Meta(max_length=MOST_KEYS)]


@dataclass(frozen=True, kw_only=True)
class ScanQuery:
    """All keys of a job, or those with a prefix, or from ``start`` to before ``stop``.

    Keys come in no order. A ``continuation`` needs no other parameter than ``job`` and ``limit``;
    it is valid once, for a minute.
    """

    job: Name
    prefix: KeyText | None = None
    start: KeyText | None = None
    stop: KeyText | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 1000
    continuation: Annotated[str, Meta(max_length=200)] | None = None


@dataclass(frozen=True, kw_only=True)
class TopQuery:
    """The keys with the largest values; ``by`` names a part of the value."""

    job: Name
    n: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 10
    by: Name | None = None


# -- changes ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SlotRange:
    """Slots from ``start`` to before ``stop``."""

    start: Annotated[int, Meta(ge=0, le=65_536)]
    stop: Annotated[int, Meta(ge=0, le=65_536)]


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """Sets how many nodes shall be active."""

    nodes: Annotated[int, Meta(ge=1, le=65_536)]
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class RebalanceRequest:
    """Gives every node a fair share of the load."""

    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class DrainRequest:
    """Lets a node give up its slots and leave."""

    node: Name
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class MoveRequest:
    """Makes a node the owner of slots."""

    slots: Annotated[list[SlotRange], Meta(min_length=1, max_length=65_536)]
    to: Name
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Finishes the epoch under way and ends the run."""

    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class SlotTransfer:
    """Slots that a change moves; ``bytes`` of state is an estimate."""

    source: str
    to: str
    slots: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ChangePreview:
    """What a change does: ``text`` for people; nodes that do not exist yet are called new-1…"""

    text: str
    nodes_before: int
    nodes_after: int
    joining: int
    leaving: list[str]
    transfers: list[SlotTransfer]
    slots: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """The answer to a change: what it does, and the run when it was accepted.

    With ``dry_run`` nothing was changed.
    """

    dry_run: bool
    preview: ChangePreview
    run: RunView


# -- access -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the caller may do, and until when."""

    workflow: str
    right: Right
    expires: float


@dataclass(frozen=True, kw_only=True)
class LoginLinkRequest:
    """Asks for a link that logs a browser in, once."""

    right: Right = "viewer"


@dataclass(frozen=True, kw_only=True)
class LoginLink:
    """A link that works once, until it ``expires``."""

    url: str
    right: Right
    expires: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request failed, and what to do about it (RFC 9457)."""

    status: int
    title: str
    detail: str


# -- queries ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HistoryQuery:
    """Points later than a time."""

    since: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


@dataclass(frozen=True, kw_only=True)
class EventsQuery:
    """Events with a larger number than ``since``; the newest of them, if there are more."""

    since: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = MOST_EVENTS


@dataclass(frozen=True, kw_only=True)
class StreamQuery:
    """Events with a larger number than ``since`` are sent first; by default none."""

    since: Count | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotChange:
    """The parts of a snapshot that differ from the one before, by name.

    The first message of a stream has all of them.
    """

    number: int
    time: float
    parts: dict[str, Any] = field(default_factory=dict)
