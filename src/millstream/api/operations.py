"""The operations of the HTTP API: path, right, types and handler of each, in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from millstream.api import contract as c
from millstream.api.served_run import ServedRun

PREFIX = "/api/v1"
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True)
class Operation(Generic[I, A]):
    """A request that a run answers: parameters of a GET are its query, of a POST its body."""

    method: Literal["GET", "POST"]
    path: str
    right: c.Right
    takes: type[I]
    answers: Any
    summary: str
    handle: Callable[[ServedRun, I], A]

    @property
    def name(self) -> str:
        """The id of the operation in the OpenAPI description."""
        return f"{self.method.lower()}_{self.path.strip('/').replace('/', '_').replace('-', '_')}"


OPERATIONS: tuple[Operation[Any, Any], ...] = (
    Operation(
        "GET",
        "/snapshot",
        "viewer",
        Nothing,
        c.Snapshot,
        "Everything about the run at this moment",
        lambda run, _: run.snapshot(),
    ),
    Operation(
        "GET",
        "/history",
        "viewer",
        c.HistoryQuery,
        c.History,
        "Time series of the newest hour or so",
        lambda run, query: run.history(query.since),
    ),
    Operation(
        "GET",
        "/events",
        "viewer",
        c.EventsQuery,
        c.Events,
        "What happened to nodes and slots, and why",
        lambda run, query: run.events(query.since, query.limit),
    ),
    Operation(
        "GET",
        "/state",
        "viewer",
        Nothing,
        list[c.StateJob],
        "The jobs whose state can be read",
        lambda run, _: run.state_jobs(),
    ),
    Operation(
        "GET",
        "/state/get",
        "viewer",
        c.GetQuery,
        c.StateItems,
        "The state of a key",
        lambda run, query: run.get_many(query.job, [query.key]),
    ),
    Operation(
        "POST",
        "/state/get-many",
        "viewer",
        c.GetManyRequest,
        c.StateItems,
        "The state of many keys",
        lambda run, query: run.get_many(query.job, query.keys),
    ),
    Operation(
        "GET",
        "/state/scan",
        "viewer",
        c.ScanQuery,
        c.StateItems,
        "A page of the keys of a job",
        lambda run, query: run.scan(query),
    ),
    Operation(
        "GET",
        "/state/top",
        "viewer",
        c.TopQuery,
        c.StateItems,
        "The keys with the largest values",
        lambda run, query: run.top(query),
    ),
    Operation(
        "POST",
        "/scale",
        "operator",
        c.ScaleRequest,
        c.Change,
        "Set how many nodes shall be active",
        lambda run, request: run.scale(request.nodes, dry_run=request.dry_run),
    ),
    Operation(
        "POST",
        "/rebalance",
        "operator",
        c.RebalanceRequest,
        c.Change,
        "Give every node a fair share of the load",
        lambda run, request: run.rebalance(dry_run=request.dry_run),
    ),
    Operation(
        "POST",
        "/drain",
        "operator",
        c.DrainRequest,
        c.Change,
        "Let a node give up its slots and leave",
        lambda run, request: run.drain(request.node, dry_run=request.dry_run),
    ),
    Operation(
        "POST",
        "/move",
        "operator",
        c.MoveRequest,
        c.Change,
        "Make a node the owner of slots",
        lambda run, request: run.move(request.slots, request.to, dry_run=request.dry_run),
    ),
    Operation(
        "POST",
        "/stop",
        "operator",
        c.StopRequest,
        c.Change,
        "Finish the epoch under way, then end the run",
        lambda run, request: run.stop(dry_run=request.dry_run),
    ),
)
