"""The contract of the HTTP API: every JSON object, as a frozen dataclass.

JSON, its validation and the OpenAPI description are made from these types. Times are in seconds
since 1970, durations in seconds, sizes in bytes, CPU in parts of a core. Nodes are named by their
ids; where a request names one, the beginning of its id is enough. Ranges of slots are from
``start`` to before ``stop``.
"""

from __future__ import annotations

from millstream.api.contract.access import (
    LoginLink,
    LoginLinkRequest,
    Problem,
    Session,
)
from millstream.api.contract.changes import (
    Change,
    ChangePreview,
    DrainRequest,
    MoveRequest,
    RebalanceRequest,
    ScaleRequest,
    SlotRange,
    SlotTransfer,
    StopRequest,
)
from millstream.api.contract.events import (
    MOST_EVENTS,
    DecisionView,
    Events,
    EventsQuery,
    EventView,
)
from millstream.api.contract.overview import (
    BacklogView,
    CheckpointView,
    EdgeView,
    EpochView,
    GraphView,
    JobView,
    PhaseView,
    RunView,
    Throughput,
    UnderWay,
    VertexView,
)
from millstream.api.contract.ring import (
    ArcView,
    HotKeyView,
    NodeView,
    PendingMove,
    RingView,
    TokenView,
)
from millstream.api.contract.snapshot import (
    History,
    HistoryQuery,
    Snapshot,
    SnapshotChange,
    StreamQuery,
)
from millstream.api.contract.state import (
    MOST_ITEMS,
    MOST_KEYS,
    GetManyRequest,
    GetQuery,
    ScanQuery,
    StateItem,
    StateItems,
    StateJob,
    TopQuery,
)
from millstream.api.contract.terms import (
    Phase,
    Right,
    Role,
    VertexKind,
)

__all__ = [
    "MOST_EVENTS",
    "MOST_ITEMS",
    "MOST_KEYS",
    "ArcView",
    "BacklogView",
    "Change",
    "ChangePreview",
    "CheckpointView",
    "DecisionView",
    "DrainRequest",
    "EdgeView",
    "EpochView",
    "EventView",
    "Events",
    "EventsQuery",
    "GetManyRequest",
    "GetQuery",
    "GraphView",
    "History",
    "HistoryQuery",
    "HotKeyView",
    "JobView",
    "LoginLink",
    "LoginLinkRequest",
    "MoveRequest",
    "NodeView",
    "PendingMove",
    "Phase",
    "PhaseView",
    "Problem",
    "RebalanceRequest",
    "Right",
    "RingView",
    "Role",
    "RunView",
    "ScaleRequest",
    "ScanQuery",
    "Session",
    "SlotRange",
    "SlotTransfer",
    "Snapshot",
    "SnapshotChange",
    "StateItem",
    "StateItems",
    "StateJob",
    "StopRequest",
    "StreamQuery",
    "Throughput",
    "TokenView",
    "TopQuery",
    "UnderWay",
    "VertexKind",
    "VertexView",
]
