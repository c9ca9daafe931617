"""Node processes as they are in production, below a process that stands for the executor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.coordinator.scaling import Member
from millstream.coordinator.server import CoordinatorServer
from millstream.coordinator.service import Coordinator
from millstream.errors import Place
from millstream.flow.function_shipping import ship
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex
from millstream.node import process
from millstream.node.joining import Admission
from millstream.node.process import Launch, Started, launch, launch_joining
from millstream.node.service import NodeOptions
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.state.aggregates import count
from millstream.wire.auth import new_secret
from millstream.wire.calls import call
from millstream.wire.epoch_record import JobTypes
from millstream.wire.flight_net import FlightNet
from millstream.wire.membership import Ping
from millstream.wire.tls import Identity, new_identity

pytestmark = pytest.mark.slow

PATIENCE = 20.0  # for what takes a second


class Nodes:
    """Starts nodes of one coordinator, whose server is this process."""

    def __init__(self, folder: Path, identity: Identity | None = None) -> None:
        secret = new_secret()
        certificate = None if identity is None else identity.certificate
        self.coordinator = Coordinator(FlightNet(secret, certificate))
        self._identity = identity
        self.server = CoordinatorServer(
            f"grpc+unix://{folder}/c.sock" if identity is None else "grpc+tls://127.0.0.2:0",
            secret,
            self.coordinator,
            identity,
        )
        self._job = JobVertex(
            Place(__file__, 1), name="count", reducer=reducer_of(count(), "count")
        )
        self._folder = str(folder)
        self._started: list[Started] = []

    def _config(self, name: str, host: str | None = None) -> Launch:
        return Launch(
            NodeId(name),
            self.server.endpoint,
            ship({0: self._job}),
            16,
            self._folder,
            host,
            "epoch",
            NodeOptions(),
            identity=self._identity,
        )

    def start(self, name: str, host: str | None = None) -> Started:
        started = launch(self._config(name, host), Domain(name, name, name))
        self._started.append(started)
        return started

    def start_joining(self, name: str, ticket: str, padding: int = 0) -> Started:
        domain = Domain(name, name, name)
        config = replace(self._config(name), ids={0: "x" * padding})
        pid = launch_joining(config, Admission(ticket, domain))
        started = Started(NodeId(name), "not known here", pid, domain)
        self._started.append(started)
        return started

    def expect(self, ticket: str) -> None:
        self.coordinator.launches.expect(ticket, "executor", "host")

    def await_member(self, node: Started) -> bool:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if node.node in self.coordinator.roster.nodes:
                return True
            time.sleep(0.02)
        return False

    def begin(self, *taken: Started) -> None:
        self.coordinator.begin(
            [Member(node.node, node.address, node.domain) for node in taken],
            {0: "count"},
            {0: JobTypes()},
            16,
            replicas=1,
            on_lost=lambda: None,
        )

    def close(self) -> None:
        self.coordinator.close()
        for node in self._started:
            with suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGKILL)
        self.server.shutdown()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        yield Path(name)


@contextmanager
def cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, identity: Identity | None = None
) -> Iterator[Nodes]:
    monkeypatch.setattr(process, "executor_pid", os.getpid)
    with ExitStack() as ends:
        nodes = Nodes(folder, identity)
        ends.callback(nodes.close)
        yield nodes


def ends(node: Started, within: float) -> bool:
    try:
        handle = os.pidfd_open(node.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


def test_a_node_that_was_not_registered_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a task that Spark ran twice, where the other attempt's node counts."""
    with cluster(folder, monkeypatch) as nodes:
        taken, spare = nodes.start("taken"), nodes.start("spare")
        assert not ends(spare, 1.5)  # who is taken in is not known yet

        nodes.begin(taken)

        assert ends(spare, PATIENCE)
        late = nodes.start("late")  # a twin that was slow to start
        assert ends(late, PATIENCE)
        assert not ends(taken, 1.5)
        assert nodes.coordinator.rpc.call(taken.node, Ping()) == taken.node


def test_a_node_joins_a_workflow_that_is_running(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(folder, monkeypatch) as nodes:
        nodes.begin(nodes.start("first"))
        nodes.expect("ticket")

        before = time.monotonic()
        node = nodes.start_joining("second", "ticket")
        assert time.monotonic() - before < 0.5  # it takes longer until it serves

        assert nodes.await_member(node)
        assert nodes.coordinator.overview().pids[node.node] == node.pid
        assert not ends(node, 1.5)  # its heartbeats are accepted
        assert nodes.coordinator.rpc.call(node.node, Ping()) == node.node


def test_a_node_joins_with_a_large_launch_configuration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than a pipe, in which the task would have to wait for the node."""
    with cluster(folder, monkeypatch) as nodes:
        nodes.begin(nodes.start("first"))
        nodes.expect("ticket")

        before = time.monotonic()
        node = nodes.start_joining("second", "ticket", padding=10**6)
        assert time.monotonic() - before < 0.5

        assert nodes.await_member(node)


def test_of_two_nodes_with_one_ticket_one_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(folder, monkeypatch) as nodes:
        nodes.begin(nodes.start("first"))
        nodes.expect("ticket")
        twins = [nodes.start_joining(name, "ticket") for name in ("one", "other")]

        handles = [os.pidfd_open(twin.pid) for twin in twins]
        ended, _, _ = select.select(handles, [], [], PATIENCE)

        [gone] = [twin for twin, handle in zip(twins, handles, strict=True) if handle in ended]
        [stays] = [twin for twin in twins if twin is not gone]
        assert nodes.await_member(stays) and not ends(stays, 1.5)
        assert gone.node not in nodes.coordinator.roster.nodes
        assert is_reaped(gone.pid)


def is_reaped(pid: int) -> bool:
    """Whether a process that has ended is no zombie."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.02)
    return False


def test_a_joining_node_ends_when_its_coordinator_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(folder, monkeypatch) as nodes:
        nodes.begin(nodes.start("first"))
        nodes.expect("ticket")
        nodes.server.shutdown()

        assert ends(nodes.start_joining("second", "ticket"), PATIENCE)


def test_a_joining_node_ends_with_its_executor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(folder, monkeypatch) as nodes, subprocess.Popen(["sleep", "60"]) as executor:
        nodes.begin(nodes.start("first"))
        nodes.expect("ticket")
        monkeypatch.setattr(process, "executor_pid", lambda: executor.pid)
        node = nodes.start_joining("second", "ticket")
        assert nodes.await_member(node)

        executor.kill()

        assert ends(node, PATIENCE)


def test_a_node_ends_when_its_coordinator_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(folder, monkeypatch) as nodes:
        node = nodes.start("alone")

        nodes.server.shutdown()

        assert ends(node, PATIENCE)


def test_nodes_on_two_hosts_speak_through_encrypted_connections(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = new_identity()
    with cluster(folder, monkeypatch, identity) as nodes:
        started = [nodes.start(host, host) for host in ("127.0.0.2", "127.0.0.3")]
        nodes.begin(*started)

        for node in started:
            assert node.address.startswith(f"grpc+tls://{node.node}:")
            endpoint = replace(nodes.server.endpoint, address=node.address)
            assert call(endpoint, Ping()) == node.node
