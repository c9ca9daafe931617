from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.wire import flight_net, timeouts
from millstream.wire.auth import new_secret
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import (
    Endpoint,
    InternalError,
    UnreachableError,
    client_of,
    drop_client,
)
from millstream.wire.feed import FeedRefusedError
from millstream.wire.flight_net import FlightNet
from millstream.wire.net import Delivery
from millstream.wire.serving import RunServer
from tests.wire.requests import Sent, header_of

SECRET = new_secret()
END: Any = ("the end", 3)
PATIENCE = 20.0  # for what should come at once


def rows_of(*blocks: bytes) -> pa.Table:
    rows = [(0, 0, 0, 0, 0, sequence, 1, block) for sequence, block in enumerate(blocks)]
    columns = zip(*rows, strict=True) if rows else [[] for _ in BLOCK_SCHEMA]
    return pa.table([list(column) for column in columns], schema=BLOCK_SCHEMA)


ROWS = rows_of(b"one", b"two", b"three")
ANSWER = pa.record_batch({"n": [1, 2, 3]})


@dataclass
class Fed:
    """What a server got in one feed."""

    header: Any
    blocks: list[bytes] = field(default_factory=list)
    end: Any = None


class Server(RunServer):
    """Records feeds, and answers as the test wants."""

    def __init__(self, address: str) -> None:
        super().__init__(address, SECRET, self._answered, self._fed)
        self.fed: list[Fed] = []
        self.arrived = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.may_read = threading.Event()
        self.may_read.set()
        self.refuse_first: Exception | None = None
        self.problem: Exception | None = None
        self.answers = [ANSWER]
        self.act: Callable[[str, Any], Any] = lambda action, body: (action, body)

    def _answered(self, request: Sent) -> Any:
        return self.act(request.action, request.body)

    def _fed(self, header: Any, items: Iterator[Any]) -> list[pa.RecordBatch]:
        if self.refuse_first is not None:
            raise self.refuse_first
        fed = Fed(header)
        self.may_read.wait(PATIENCE)
        for item in items:
            if isinstance(item, pa.RecordBatch):
                fed.blocks += item.column("block").to_pylist()
            else:
                fed.end = item
        self.fed.append(fed)
        self.arrived.set()
        self.may_answer.wait(PATIENCE)
        if self.problem is not None:
            raise self.problem
        return self.answers


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        yield Path(name)


class Servers:
    """Servers by name, each on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Server] = {}

    def address(self, name: str) -> str:
        return f"grpc+unix://{self._folder}/{name}.sock"

    def start(self, name: str) -> Server:
        server = self._running[name] = Server(self.address(name))
        return server

    def end(self) -> None:
        for name, server in self._running.items():
            server.may_read.set()
            server.may_answer.set()
            drop_client(Endpoint(self.address(name), SECRET))
            server.shutdown()


@pytest.fixture
def servers(folder: Path) -> Iterator[Servers]:
    found = Servers(folder)
    yield found
    found.end()


@pytest.fixture
def primary(servers: Servers) -> Server:
    return servers.start("primary")


@pytest.fixture
def net() -> FlightNet:
    return FlightNet(SECRET)


def never() -> bool:
    return False


def feed(
    net: FlightNet,
    servers: Servers,
    *copies: str,
    rows: pa.Table = ROWS,
    abandoned: Callable[[], bool] = never,
) -> list[Any]:
    """Feed the primary and these copies; gives the numbers that the primary answers."""
    outputs = net.feed(
        Delivery(servers.address("primary"), header_of("to the primary")),
        [Delivery(servers.address(name), header_of(f"to {name}")) for name in copies],
        rows,
        END,
        abandoned,
    )
    return [number for batch in outputs for number in batch.column("n").to_pylist()]


# -- calls -----------------------------------------------------------------------------------


def test_a_call_returns_the_answer_or_raises_the_error(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    address = servers.address("primary")
    assert net.call(address, Sent("echo", {"a": 1})) == ("echo", {"a": 1})

    def refuse(action: str, body: Any) -> Any:
        raise FeedRefusedError("no", stale=True)

    primary.act = refuse
    with pytest.raises(FeedRefusedError) as caught:
        net.call(address, Sent("echo"))
    assert caught.value.stale


def test_gathered_calls_run_concurrently_and_return_results_and_errors_in_order(
    net: FlightNet,
) -> None:
    together = threading.Barrier(3)

    def call(number: int) -> int:
        together.wait(PATIENCE)
        if number == 1:
            raise FeedRefusedError("no", stale=False)
        return number

    one, problem, other = net.gather([lambda n=n: call(n) for n in range(3)])  # type: ignore[misc]

    assert (one, other) == (0, 2) and isinstance(problem, FeedRefusedError)


def test_gather_of_no_call_or_one_call(net: FlightNet) -> None:
    def fail() -> int:
        raise ValueError("no")

    assert net.gather([]) == []
    assert net.gather([lambda: 7]) == [7]
    [problem] = net.gather([fail])
    assert isinstance(problem, ValueError)


def test_spawn_runs_a_function_in_a_named_thread(net: FlightNet) -> None:
    found: list[threading.Thread] = []
    done = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        done.set()

    net.spawn(work, "watch")

    assert done.wait(PATIENCE)
    assert found[0].daemon and found[0].name == "millstream-watch"


def test_locks_are_reentrant_and_exclude_other_threads(net: FlightNet) -> None:
    lock = net.lock()
    entered = threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    with lock, lock:
        net.spawn(enter, "enter")
        assert not entered.wait(0.05)
    assert entered.wait(PATIENCE)


def test_the_clock_advances(net: FlightNet) -> None:
    before = net.now()

    net.sleep(0.01)

    assert net.now() - before >= 0.01


# -- feeds -----------------------------------------------------------------------------------


def test_a_feed_carries_header_rows_and_end_marker_and_returns_the_outputs(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    primary.answers = [ANSWER, ANSWER.slice(0, 0), ANSWER.slice(1)]

    assert feed(net, servers) == [1, 2, 3, 2, 3]

    assert primary.fed == [Fed("to the primary", [b"one", b"two", b"three"], END)]


def test_a_feed_without_rows_or_without_outputs_succeeds(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    primary.answers = []

    assert feed(net, servers, rows=rows_of()) == []

    assert primary.fed == [Fed("to the primary", [], END)]


def test_copies_get_the_same_rows_under_their_own_header(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    backups = [servers.start(name) for name in ("one", "two")]

    assert feed(net, servers, "one", "two") == [1, 2, 3]

    # The feed has waited for them.
    for name, backup in zip(("one", "two"), backups, strict=True):
        assert backup.fed == [Fed(f"to {name}", [b"one", b"two", b"three"], END)]


@pytest.mark.parametrize("fate", ["not there", "refuses first", "refuses", "fails"])
def test_a_copy_that_fails_does_not_hurt_the_primary(
    net: FlightNet,
    servers: Servers,
    primary: Server,
    fate: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loud: list[object] = []
    monkeypatch.setattr(threading, "excepthook", loud.append)
    if fate != "not there":
        backup = servers.start("backup")
        backup.refuse_first = (
            FeedRefusedError("no", stale=True) if fate == "refuses first" else None
        )
        backup.problem = {
            "refuses": FeedRefusedError("no", stale=True),
            "fails": ZeroDivisionError("oops"),
        }.get(fate)
    healthy = servers.start("healthy")

    assert feed(net, servers, "backup", "healthy") == [1, 2, 3]

    assert len(primary.fed) == len(healthy.fed) == 1
    assert loud == []


def test_a_slow_copy_is_cancelled_after_a_timeout(
    net: FlightNet, servers: Servers, primary: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "CALL_TIMEOUT", 0.2)
    backup = servers.start("backup")
    backup.may_answer.clear()
    started = time.monotonic()

    assert feed(net, servers, "backup") == [1, 2, 3]

    assert 0.2 <= time.monotonic() - started < PATIENCE / 2
    backup.may_answer.set()


# -- feeds that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["first", "after the end"])
def test_an_error_of_the_primary_is_raised_as_it_was(
    net: FlightNet, servers: Servers, primary: Server, when: str
) -> None:
    problem = FeedRefusedError("slot 3 is not owned", stale=False)
    if when == "first":
        primary.refuse_first = problem
    else:
        primary.problem = problem

    with pytest.raises(FeedRefusedError) as caught:
        feed(net, servers)

    assert caught.value.args == problem.args


def test_a_rejection_reaches_the_sender_of_a_large_feed(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    primary.refuse_first = FeedRefusedError("slot 3 is not owned", stale=False)
    rows = pa.concat_tables([rows_of(b"x" * 2**20)] * 32)

    with pytest.raises(FeedRefusedError):
        feed(net, servers, rows=rows)


def test_an_untyped_error_becomes_an_internal_error(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    primary.problem = ZeroDivisionError("division by zero")

    with pytest.raises(InternalError, match="ZeroDivisionError"):
        feed(net, servers)


def test_a_primary_that_is_not_there_is_unreachable(net: FlightNet, servers: Servers) -> None:
    with pytest.raises(UnreachableError) as caught:
        feed(net, servers)

    assert caught.value.refused and caught.value.address == servers.address("primary")


def test_an_abandoned_feed_to_a_silent_primary_is_cancelled(
    net: FlightNet, servers: Servers, primary: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_net, "_POLL_ABANDONED", 0.02)
    primary.may_answer.clear()
    looks = []

    def abandoned() -> bool:
        looks.append(primary.arrived.is_set())
        return len(looks) >= 3 and looks[-1]

    with pytest.raises(UnreachableError, match="the feed was abandoned") as caught:
        feed(net, servers, abandoned=abandoned)

    assert len(looks) >= 3 and not caught.value.refused
    primary.may_answer.set()
    primary.arrived.clear()
    assert feed(net, servers) == [1, 2, 3]  # the connection is as good as before


def test_a_feed_abandoned_during_the_handshake_is_cancelled(
    net: FlightNet, servers: Servers, primary: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_net, "_POLL_ABANDONED", 0.02)
    primary.may_answer.clear()
    looked = threading.Event()

    def slow(endpoint: Endpoint) -> Any:
        looked.wait(PATIENCE)
        time.sleep(0.1)  # the look that found it abandoned is over
        return client_of(endpoint)

    def abandoned() -> bool:
        looked.set()
        return True

    monkeypatch.setattr(flight_net, "client_of", slow)
    threading.Timer(2.0, primary.may_answer.set).start()

    with pytest.raises(UnreachableError):
        feed(net, servers, abandoned=abandoned)


def test_a_feed_cancelled_while_rows_are_sent_does_not_interrupt_the_process(
    net: FlightNet, servers: Servers, primary: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_net, "_POLL_ABANDONED", 0.2)
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    primary.may_read.clear()
    rows = pa.concat_tables([rows_of(b"x" * 2**20)] * 32)  # more than fits into the pipe

    try:
        with pytest.raises(UnreachableError, match="the feed was abandoned"):
            feed(net, servers, rows=rows, abandoned=lambda: True)
    finally:
        signal.signal(signal.SIGINT, before)

    # Some of Arrow's readers take a call that was cancelled for Ctrl-C.
    assert interrupts == []


def test_abandoned_is_not_polled_after_the_feed(
    net: FlightNet, servers: Servers, primary: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_net, "_POLL_ABANDONED", 0.02)
    looks: list[bool] = []

    def abandoned() -> bool:
        looks.append(True)
        return False

    feed(net, servers, abandoned=abandoned)
    found = len(looks)
    time.sleep(0.1)  # several looks, if there were any

    assert len(looks) == found


# -- refused, or only silent -----------------------------------------------------------------


def failure(net: FlightNet, address: str, timeout: float = 5.0) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        net.call(address, Sent("ping"), timeout)
    return caught.value


def test_a_socket_that_was_never_there_refuses(net: FlightNet, servers: Servers) -> None:
    assert failure(net, servers.address("nobody")).refused


def test_a_socket_without_a_process_refuses(net: FlightNet, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/dead.sock")  # the file stays, as after SIGKILL

    assert Path(f"{folder}/dead.sock").exists()
    assert failure(net, f"grpc+unix://{folder}/dead.sock").refused


def test_a_closed_port_refuses(net: FlightNet) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    assert failure(net, f"grpc://127.0.0.1:{port}").refused


def test_a_server_that_went_after_a_call_refuses_the_next_but_one_at_the_latest(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    address = servers.address("primary")
    assert net.call(address, Sent("ping")) == ("ping", None)
    primary.shutdown()

    failure(net, address)  # may be a broken connection

    assert failure(net, address).refused


def test_a_server_that_takes_too_long_does_not_refuse(
    net: FlightNet, servers: Servers, primary: Server
) -> None:
    done = threading.Event()
    primary.act = lambda action, body: done.wait(PATIENCE)

    late = failure(net, servers.address("primary"), timeout=0.2)
    done.set()

    assert late.timed_out and not late.refused
