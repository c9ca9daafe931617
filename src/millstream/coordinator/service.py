"""The coordinator: the ledger, the nodes, and the server that tasks and nodes ask.

It lives in the Spark driver. It alone mints ring versions, fixes epoch records and decides that
a node is lost.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from millstream.coordinator.ledger import Ledger
from millstream.coordinator.record import EpochRecord, JobTypes
from millstream.errors import MillstreamError
from millstream.node.messages import Assign, NodeReport, Receipts
from millstream.node.process import Started
from millstream.ring.ring import NodeId, Ring
from millstream.state.pickling import loads
from millstream.wire.auth import ServerAuth
from millstream.wire.calls import (
    Endpoint,
    Unreachable,
    call,
    client_of,
    drop_client,
    server_error,
    translated,
)

_PING_EVERY = 1.0
_CONFIRMATIONS = 3
_SLOW = 120.0


class NodeLost(MillstreamError):
    """A node is gone, and with it the only copy of its state."""

    def __init__(self, node: str, host: str, executor: str, pid: int, slots: int) -> None:
        super().__init__(node, host, executor, pid, slots)
        self.node, self.host, self.executor = node, host, executor
        self.pid, self.slots = pid, slots

    def __str__(self) -> str:
        return (
            f"node {self.node[:8]} (process {self.pid} of executor {self.executor} on {self.host}) "
            f"is gone, and the state of its {self.slots} slots with it; the epoch under way was "
            "not committed. State has no second copy in this version: run the workflow again "
            "with a new checkpoint folder to compute it anew"
        )


class RunEnded(MillstreamError):
    """Something was asked of a run that has ended."""


class StaleTask(MillstreamError):
    """A task asked for an epoch or try that is over."""


class Coordinator:
    """Speaks for the run: to the nodes, to Spark's tasks, and to the engine."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._secret = secret
        self._server = _CoordinatorServer(address, secret, self)
        port = self._server.port
        if port > 0:  # TCP, on a port that was free
            address = f"{address.removesuffix(':0')}:{port}"
        self.endpoint = Endpoint(address, secret)
        self._lock = threading.Lock()
        self._nodes: dict[NodeId, Started] = {}
        self._ledger: Ledger | None = None
        self._failures: list[MillstreamError] = []
        self._arrived: set[NodeId] = set()
        self._lost: NodeLost | None = None
        self._on_lost: Callable[[], None] | None = None
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="millstream")

    # -- the engine's side ---------------------------------------------------------------

    def begin(
        self,
        nodes: Iterable[Started],
        jobs: Mapping[int, str],
        types: Mapping[int, JobTypes],
        slots: int,
        on_lost: Callable[[], None],
    ) -> None:
        """Take the nodes in, mint the first ring, and watch them from now on."""
        self._nodes = {started.node: started for started in nodes}
        ring = Ring.even(list(self._nodes), slots)
        addresses = {node: started.address for node, started in self._nodes.items()}
        self._ledger = Ledger(1, jobs, ring, addresses, types)
        self._on_lost = on_lost
        self._each("assign", Assign(1, ring))
        threading.Thread(target=self._watch, name="millstream-watch", daemon=True).start()

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    @property
    def nodes(self) -> list[Started]:
        return list(self._nodes.values())

    @property
    def lost(self) -> NodeLost | None:
        """The node that was lost, if one was."""
        return self._lost

    def admit(self, epoch: int, now: int) -> EpochRecord:
        """Fix the record of an epoch."""
        with self._lock:
            self._failures.clear()
            return self.ledger.admit(epoch, now)

    def retry(self) -> EpochRecord:
        """Begin the next try of the epoch under way."""
        with self._lock:
            self._failures.clear()
            return self.ledger.retry()

    def collect_receipts(self) -> dict[NodeId, NodeReport]:
        """Ask every node for its word on the epoch under way."""
        record = self.ledger.record
        assert record is not None
        reports: dict[NodeId, NodeReport] = {}
        answers: Iterator[tuple[NodeId, Receipts]] = self._each(
            "receipts", (record.epoch, record.try_)
        )
        for node, answer in answers:
            self.ledger.receive(node, answer.receipts)
            reports[node] = answer.report
        return reports

    def commit(self) -> EpochRecord:
        """Commit the epoch under way and tell the nodes to seal it."""
        with self._lock:
            record = self.ledger.commit()
        for node in self._nodes:
            # Not awaited: the next feed carries the committed epoch and implies the seal.
            self._pool.submit(self._quietly, node, "seal", record.epoch)
        return record

    def failure(self) -> MillstreamError | None:
        """The error that best explains why the epoch under way failed."""
        if self._lost is not None:
            return self._lost
        with self._lock:
            return self._failures[-1] if self._failures else None

    def get(self, job: int, key: object) -> Any:
        """A key's committed state."""
        self.seal_all()
        answers: Iterator[tuple[NodeId, bytes]] = self._each("get", (job, key))
        found = [loads(answer) for _, answer in answers]
        return next((state for state in found if state is not None), None)

    def items(self, job: int) -> Iterator[tuple[Any, Any]]:
        """All committed keys of a job, node by node; epochs may be committed meanwhile."""
        self.seal_all()
        for node in self._nodes:
            endpoint = self._endpoint(node)
            try:
                stream = client_of(endpoint).do_get(flight.Ticket(pickle.dumps(job)))
                for chunk in stream:
                    for part in chunk.data.column(0).to_pylist():
                        for key, value in pickle.loads(part):
                            yield key, loads(value)
            except (flight.FlightError, pa.ArrowException) as problem:
                raise translated(endpoint, problem) from None

    def seal_all(self) -> None:
        """Wait until every node has sealed the newest committed epoch."""
        if self._closed.is_set():
            raise RunEnded("the run has ended and its state with it; read state before stop()")
        list(self._each("seal", self.ledger.committed))

    def close(self) -> None:
        """End the nodes and the server."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            for node in self._nodes:  # not by the pool, which is closed when Python exits
                self._quietly(node, "stop", None)
                drop_client(self._endpoint(node))
        finally:
            self._server.shutdown()

    # -- the nodes -----------------------------------------------------------------------

    def _endpoint(self, node: NodeId) -> Endpoint:
        return Endpoint(self._nodes[node].address, self._secret)

    def _quietly(self, node: NodeId, action: str, body: object) -> None:
        try:
            call(self._endpoint(node), action, body, timeout=10.0)
        except MillstreamError:
            return  # the watch notices a node that is gone; a seal comes again with the next feed

    def _each(self, action: str, body: object) -> Iterator[tuple[NodeId, Any]]:
        futures = {
            node: self._pool.submit(call, self._endpoint(node), action, body)
            for node in self._nodes
        }
        answers = []
        for node, future in futures.items():
            try:
                answers.append((node, future.result()))
            except Unreachable:
                answers.append((node, self._insist(node, action, body)))
        return iter(answers)

    def _insist(self, node: NodeId, action: str, body: object) -> Any:
        """Ask again as long as the node is alive: it may be busy with a long reduce."""
        while True:
            self.suspect(node)
            with contextlib.suppress(Unreachable):
                return call(self._endpoint(node), action, body)

    def suspect(self, node: NodeId) -> None:
        """Look again at a node that did not answer; raise ``NodeLost`` when it is gone."""
        refused, deadline = 0, time.monotonic() + _SLOW
        while refused < _CONFIRMATIONS and time.monotonic() < deadline:
            try:
                call(self._endpoint(node), "ping", timeout=5.0)
                return
            except Unreachable as problem:
                # A process that is gone refuses; one that is slow lets the call time out.
                refused += "connect" in problem.reason or "closed" in problem.reason.lower()
                time.sleep(0.1)
        started = self._nodes[node]
        lost = NodeLost(
            node,
            started.host,
            started.executor,
            started.pid,
            len(self.ledger.ring.slots_of(node)),
        )
        if not self._closed.is_set():
            first, self._lost = self._lost is None, self._lost or lost
            if first and self._on_lost is not None:
                threading.Thread(target=self._on_lost, daemon=True).start()
        raise self._lost or lost

    def _watch(self) -> None:
        while not self._closed.wait(_PING_EVERY):
            for node in list(self._nodes):
                try:
                    call(self._endpoint(node), "ping", timeout=10.0)
                except Unreachable:
                    if self._closed.is_set():
                        return
                    try:
                        self.suspect(node)
                    except NodeLost:
                        return
                except MillstreamError:
                    continue

    # -- the tasks' side -----------------------------------------------------------------

    def answer(self, action: str, body: Any) -> Any:
        """Answer a task or a node."""
        if action == "ping":
            return None
        if action == "record":
            return self._record(*body)
        if action == "failed":
            epoch, try_, problem = body
            with self._lock:
                record = self.ledger.record
                if record is not None and (record.epoch, record.try_) == (epoch, try_):
                    self._failures.append(problem)
            return None
        if action == "arrived":
            with self._lock:
                self._arrived.add(body)
                return len(self._arrived)
        if action == "suspect":
            return self.suspect(body)
        raise StaleTask(f"the coordinator has no action {action!r}")

    def _record(self, epoch: int, try_: int) -> EpochRecord:
        if self._lost is not None:
            raise self._lost
        with self._lock:
            record = self.ledger.record
        if record is None or (record.epoch, record.try_) != (epoch, try_):
            raise StaleTask(
                f"epoch {epoch}, try {try_} is over: the DataFrame given to a sink can be read "
                "only until the sink's function returns"
            )
        return record


class _CoordinatorServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, address: str, secret: bytes, coordinator: Coordinator) -> None:
        super().__init__(address, auth_handler=ServerAuth(secret))
        self._coordinator = coordinator

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            answer = self._coordinator.answer(action.type, pickle.loads(action.body))
            return [pickle.dumps(answer, 5)]
        except Exception as problem:
            raise server_error(problem) from problem
