"""The node process: started by a Spark task, resident, and ended with its executor.

``launch`` and ``launch_joining`` run inside the task; ``main`` is the process. The launch
configuration, with the run's secret and the user's functions, is passed through anonymous memory,
never through arguments or the environment.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import cloudpickle

from millstream.errors import MillstreamError
from millstream.flow.vertices import JobVertex
from millstream.log_context import LogContext, show_context
from millstream.node.driver_watch import await_driver_lost
from millstream.node.durability.write_queue import WriteQueue, WriteQueueOptions
from millstream.node.joining import Admission, join
from millstream.node.load_meter import LoadMeter, MeterOptions
from millstream.node.machine import Durability, NodeMachine
from millstream.node.output_spool import OutputSpool, scratch_folder
from millstream.node.server import NodeServer, digest_blocks, hardware, memory
from millstream.node.service import NodeOptions, NodeService
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.state.collector import tune_node_process
from millstream.state.spill import Spilling
from millstream.stores.registry import open_store
from millstream.wire.calls import Endpoint
from millstream.wire.flight_net import FlightNet
from millstream.wire.membership import Join
from millstream.wire.serving import tcp_address
from millstream.wire.tls import Identity

_READY = b"ready "
_START_TIMEOUT = 60.0
_CLOSE_TIMEOUT = 2.0


@dataclass(frozen=True)
class Launch:
    """The launch configuration of a node process.

    It listens on a socket in the run's ``folder``, or, if ``host`` is given, on a free port there.
    ``store`` is the URL of the store, where jobs have ``ids``. Keys beyond the ``memory_limit``, in
    bytes, are spilled to a local disk. With an ``identity``, connections to the host are encrypted.
    With an ``admission`` the node joins a workflow that is running. ``workflow`` is its name, for
    the log.
    """

    node: NodeId
    coordinator: Endpoint
    jobs: bytes
    slots: int
    folder: str
    host: str | None
    durability: Durability
    options: NodeOptions
    store: str | None = None
    ids: Mapping[int, str] = field(default_factory=dict)
    queue: WriteQueueOptions = field(default_factory=WriteQueueOptions)
    memory_limit: int | None = None
    identity: Identity | None = None
    admission: Admission | None = None
    workflow: str = ""


@dataclass(frozen=True)
class Started:
    """A running node."""

    node: NodeId
    address: str
    pid: int
    domain: Domain


class NodeStartError(MillstreamError):
    """A node process did not start."""


def launch(config: Launch, domain: Domain, above: int | None = None) -> Started:
    """Start a node that outlives the calling task, and wait until it serves; runs on the executor.

    It ends with the process ``above``, which is the executor unless another one is given.
    """
    process = _spawn(config, above)
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT)
    line = process.stdout.readline() if readable else b""
    process.stdout.close()
    if not line.startswith(_READY):
        process.kill()
        raise NodeStartError(
            f"node {config.node} did not start on {domain.host} (exit code {process.wait()}); "
            "see the executor's stderr"
        )
    _reap(process)
    address = line[len(_READY) :].decode().strip()
    return Started(config.node, address, process.pid, domain)


def launch_joining(config: Launch, admission: Admission, above: int | None = None) -> int:
    """Start a node that joins by itself when it serves; return its process id at once.

    The calling task has one of few cores, and a node takes a second to start.
    """
    process = _spawn(replace(config, admission=admission), above)
    assert process.stdout is not None
    process.stdout.close()
    _reap(process)
    return process.pid


def _spawn(config: Launch, above: int | None) -> subprocess.Popen[bytes]:
    # Not through a pipe, which blocks the writer when it is full until the child reads.
    with os.fdopen(os.memfd_create("launch"), "w+b") as given:
        given.write(pickle.dumps(config, 5))
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", "millstream.node", str(above or executor_pid())],
            stdin=given,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )


def _reap(process: subprocess.Popen[bytes]) -> None:
    # The worker of this task outlives the node, which would become a zombie without a waiter.
    threading.Thread(target=process.wait, daemon=True).start()


def executor_pid() -> int:
    """The Java process above this one: the executor (in local mode, the driver)."""
    pid = os.getpid()
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        if name == "java":
            return pid
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    raise NodeStartError("a node must be started below an executor, but no java process was found")


def main() -> None:
    """Serve until the executor or the driver has ended."""
    config: Launch = pickle.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # frees the memory that it came in
    jobs: Mapping[int, JobVertex] = cloudpickle.loads(config.jobs)
    spilling, scratch = _spilling(config)
    machine = NodeMachine(
        config.node,
        jobs,
        config.slots,
        digest=digest_blocks,
        clock=time.perf_counter,
        durability=config.durability,
        ids=config.ids,
        spilling=spilling,
        meter=LoadMeter(
            jobs,
            config.slots,
            clock=time.perf_counter,
            cpu=time.process_time,
            options=MeterOptions(kind=hardware()),
        ),
    )
    context = LogContext(
        workflow=config.workflow, node=config.node[:8], epoch=lambda: machine.newest_epoch
    )
    context.open()
    show_context()
    end = threading.Event()
    net = FlightNet.to(config.coordinator)
    queue = None
    if config.store is not None:
        queue = WriteQueue(net, open_store(config.store, config.node), config.queue)
    service = NodeService(
        machine,
        net,
        config.coordinator.address,
        config.options,
        memory,
        # A moment later, so that the caller gets an answer.
        stop=lambda: threading.Timer(0.05, end.set).start(),
        after_merge=tune_node_process(),
        queue=queue,
        spool=OutputSpool(scratch_folder),
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    socket = Path(config.folder, f"{config.node[:8]}.sock")
    address = f"grpc+unix://{socket}"
    if config.host is not None:
        address = tcp_address(config.host, config.identity)
    server = NodeServer(address, config.coordinator.secret, service, config.identity)
    net.spawn(lambda: _watch_executor(int(sys.argv[1]), end), "executor")
    service.start()
    _announce(config, server.endpoint.address, net, service, end)
    if not end.is_set():
        net.spawn(lambda: _watch_driver(config, net, end), "driver")
    end.wait()
    _close_reducers(machine)
    socket.unlink(missing_ok=True)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    # Not sys.exit(): handlers may still wait for feeders that have ended.
    os._exit(0)


def _close_reducers(machine: NodeMachine) -> None:
    """Close users' reducers; one that hangs does not keep the node alive."""
    closing = threading.Thread(target=machine.reducers.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_TIMEOUT)


def _announce(
    config: Launch, address: str, net: FlightNet, service: NodeService, end: threading.Event
) -> None:
    """Report that the node serves: to the task that started it, or to the coordinator.

    Heartbeats begin afterwards: the coordinator rejects those of a node that is not a member.
    """
    admission = config.admission
    if admission is None:
        os.write(1, _READY + address.encode() + b"\n")
    # What functions of the user print goes to the executor's stderr; nobody reads the pipe now.
    os.dup2(2, 1)
    if admission is not None:
        request = Join(config.node, address, os.getpid(), admission.domain, admission.ticket)
        assignment = join(net, config.coordinator.address, request, end.is_set)
        if assignment is None:
            end.set()
        else:
            service.answer(assignment)


def _spilling(config: Launch) -> tuple[Spilling | None, Path | None]:
    """The spilling of keys to disk and its folder, if there is a memory limit."""
    if config.memory_limit is None:
        return None, None
    from millstream.stores.rocksdb.cold import ColdTable  # needs the extra

    table = ColdTable(scratch_folder(), config.memory_limit)
    return Spilling(config.memory_limit, table.of), table.path


def _watch_executor(pid: int, end: threading.Event) -> None:
    # Unlike a process id, a pidfd is not reused, and is readable once the process is a zombie.
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end.set()


def _watch_driver(config: Launch, net: FlightNet, end: threading.Event) -> None:
    fenced = await_driver_lost(net, config.coordinator.address, config.node, end.is_set)
    if not fenced and not end.is_set() and config.host is None:
        # The folder is the driver's, which cannot remove it now.
        shutil.rmtree(config.folder, ignore_errors=True)
    end.set()
