from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from millstream.errors import MillstreamError
from millstream.ring.keys import KeyTypeError
from millstream.wire import calls
from millstream.wire.auth import ClientAuth, new_secret
from millstream.wire.calls import (
    Endpoint,
    InternalError,
    UnreachableError,
    call,
    client_of,
    drop_client,
)
from millstream.wire.feed import FeedRefusedError
from millstream.wire.serving import RunServer
from millstream.wire.tls import Identity
from millstream.work.failures import UserFunctionError
from tests.wire.requests import Sent

SECRET = new_secret()


class Server(RunServer):
    """Answers as the test wants, and records requests."""

    def __init__(
        self, address: str, secret: bytes = SECRET, identity: Identity | None = None
    ) -> None:
        super().__init__(address, secret, self._answered, identity=identity)
        self.answer: Callable[[str, Any], Any] = lambda action, body: (action, body)
        self.seen: list[str] = []

    def _answered(self, request: Sent) -> Any:
        self.seen.append(request.action)
        return self.answer(request.action, request.body)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        yield Path(name)


@pytest.fixture
def address(folder: Path) -> str:
    return f"grpc+unix://{folder}/s.sock"


@pytest.fixture
def server(address: str) -> Iterator[Server]:
    with Server(address) as running:
        yield running
    drop_client(Endpoint(address, SECRET))


@pytest.fixture
def endpoint(server: Server, address: str) -> Endpoint:
    return Endpoint(address, SECRET)


def failing_with(server: Server, error: Exception) -> None:
    def answer(action: str, body: Any) -> Any:
        raise error

    server.answer = answer


def test_a_call_returns_the_answer_of_the_server(endpoint: Endpoint) -> None:
    assert call(endpoint, Sent("echo", {"a": (1, None)})) == ("echo", {"a": (1, None)})


def test_a_process_caches_one_client_per_endpoint(endpoint: Endpoint) -> None:
    first = client_of(endpoint)

    assert client_of(endpoint) is first
    drop_client(endpoint)
    assert client_of(endpoint) is not first


# -- who may speak ---------------------------------------------------------------------------


def test_a_caller_with_the_wrong_secret_reaches_nothing(server: Server, address: str) -> None:
    with pytest.raises(UnreachableError):
        call(Endpoint(address, new_secret()), Sent("echo"))

    assert server.seen == []


def test_a_caller_that_trusts_any_server_is_still_refused(server: Server, address: str) -> None:
    class Gullible(ClientAuth):
        """Skips the check of the server's proof, and answers with a wrong one."""

        def authenticate(self, outgoing: Any, incoming: Any) -> None:
            outgoing.write(b"x" * 32)
            incoming.read()
            outgoing.write(b"y" * 32)
            self._token = incoming.read()

    client = flight.connect(address)

    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightServerError)):
        client.authenticate(Gullible(SECRET, address))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("echo", pickle.dumps(1))))

    assert server.seen == []


def test_a_caller_without_a_handshake_reaches_nothing(server: Server, address: str) -> None:
    client = flight.connect(address)

    for attempt in (
        lambda: list(client.do_action(flight.Action("echo", pickle.dumps(1)))),
        lambda: list(client.do_get(flight.Ticket(pickle.dumps(1)))),
        lambda: client.do_exchange(flight.FlightDescriptor.for_command(b"x"))[1].read_all(),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            attempt()

    assert server.seen == []


def test_a_made_up_token_opens_nothing(server: Server, address: str) -> None:
    class Forger(flight.ClientAuthHandler):  # type: ignore[misc]
        def authenticate(self, outgoing: Any, incoming: Any) -> None:
            return None

        def get_token(self) -> bytes:
            return b"z" * 32

    client = flight.connect(address)
    with pytest.raises((flight.FlightError, OSError)):
        client.authenticate(Forger())
        list(client.do_action(flight.Action("echo", pickle.dumps(1))))

    assert server.seen == []


def test_nothing_is_sent_to_an_impostor(address: str) -> None:
    with Server(address, secret=new_secret()) as impostor:
        with pytest.raises(UnreachableError, match="the server does not hold the run's secret"):
            call(Endpoint(address, SECRET), Sent("echo", "a secret body"))

        assert impostor.seen == []


def test_nothing_is_unpickled_before_the_handshake(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = folder / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (trap,)

    class Impostor:
        """What a client would see of a server that ends the handshake with a poisoned error."""

        def authenticate(self, *arguments: Any) -> None:
            raise flight.FlightServerError("no", extra_info=pickle.dumps(Trap()))

        def close(self) -> None:
            return None

    monkeypatch.setattr(flight, "connect", lambda address: Impostor())

    with pytest.raises(UnreachableError):
        call(Endpoint("grpc://impostor:1", SECRET), Sent("echo"))

    assert not trap.exists()


def test_the_repr_hides_the_secret() -> None:
    assert repr(Endpoint("grpc://x:1", SECRET)) == "Endpoint(grpc://x:1)"


# -- errors ----------------------------------------------------------------------------------

ERRORS: list[MillstreamError] = [
    FeedRefusedError("slot 3 is not owned", False),
    KeyTypeError("1", "str", "int"),
    UserFunctionError("map", "f", None, "ValueError: é…", "'k'", "trace\n"),
    InternalError("x"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_server_is_raised_at_the_caller_as_it_was(
    server: Server, endpoint: Endpoint, error: MillstreamError
) -> None:
    failing_with(server, error)

    with pytest.raises(type(error)) as caught:
        call(endpoint, Sent("fail"))

    assert type(caught.value) is type(error)
    assert caught.value.args == error.args
    assert call_again(server, endpoint) == "fine"


def call_again(server: Server, endpoint: Endpoint) -> Any:
    server.answer = lambda action, body: "fine"
    return call(endpoint, Sent("again"))


def test_an_untyped_error_becomes_an_internal_error(server: Server, endpoint: Endpoint) -> None:
    failing_with(server, ZeroDivisionError("division by zero"))

    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero"):
        call(endpoint, Sent("fail"))


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\n" * 20_000], ids=len)
def test_an_error_too_long_for_a_trailer_is_truncated_and_keeps_its_type(
    server: Server, endpoint: Endpoint, text: str
) -> None:
    failing_with(server, UserFunctionError("map", "f", None, text, text, text))

    with pytest.raises(UserFunctionError) as caught:
        call(endpoint, Sent("fail"))

    assert caught.value.function == "f"
    assert len(caught.value.trace) >= 200


def test_an_error_that_cannot_be_pickled_is_reported_by_its_name(
    server: Server, endpoint: Endpoint
) -> None:
    class LocalError(MillstreamError):
        """Not to be found by its name."""

    failing_with(server, LocalError("what happened"))

    with pytest.raises(InternalError, match="LocalError: what happened"):
        call(endpoint, Sent("fail"))


# -- servers that do not answer --------------------------------------------------------------


def test_a_server_that_is_not_there_is_unreachable(address: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        call(Endpoint(address, SECRET), Sent("ping"))

    assert caught.value.address == address
    assert "connect" in caught.value.reason  # what the node's watch of its driver looks for


def test_a_server_that_takes_too_long_is_unreachable(server: Server, endpoint: Endpoint) -> None:
    done = threading.Event()
    server.answer = lambda action, body: done.wait(10)

    with pytest.raises(UnreachableError):
        call(endpoint, Sent("slow"), timeout=0.2)
    done.set()

    assert call_again(server, endpoint) == "fine"


def test_a_server_that_does_not_answer_the_handshake_is_unreachable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_HANDSHAKE_TIMEOUT", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/q.sock")
        silent.listen()

        started = time.monotonic()
        with pytest.raises(UnreachableError):
            call(Endpoint(f"grpc+unix://{folder}/q.sock", SECRET), Sent("ping"))

        assert time.monotonic() - started < 10  # gRPC alone would wait for 20 seconds


def test_a_server_that_started_again_is_reached_by_the_next_call(address: str) -> None:
    endpoint = Endpoint(address, SECRET)
    with Server(address):
        assert call(endpoint, Sent("one")) == ("one", None)
    with pytest.raises(UnreachableError):
        call(endpoint, Sent("two"), timeout=5.0)

    with Server(address):
        for _ in range(3):  # the first calls may meet the old connection, or its token
            try:
                answer = call(endpoint, Sent("three"), timeout=5.0)
                break
            except UnreachableError:
                continue
        assert answer == ("three", None)
    drop_client(endpoint)


def test_many_threads_share_an_endpoint(endpoint: Endpoint) -> None:
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(call(endpoint, Sent("echo", n))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [("echo", n) for n in range(8)]


def test_unreachable_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(UnreachableError("grpc://x", "refused")))

    assert str(copy) == "grpc://x does not answer: refused"


_CALLS_WHILE_DROPPED = """
import sys, threading
from millstream.errors import MillstreamError
from millstream.wire.calls import Endpoint, call, drop_client
from tests.wire.requests import Sent

endpoint = Endpoint(sys.argv[1], bytes.fromhex(sys.argv[2]))
left = [300] * 6

def work(me):
    while left[me] > 0:
        left[me] -= 1
        try:
            call(endpoint, Sent("echo", me), 5.0)
        except MillstreamError:
            pass

threads = [threading.Thread(target=work, args=(me,)) for me in range(len(left))]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    drop_client(endpoint)
for thread in threads:
    thread.join()
print("alive")
"""


def test_calls_survive_a_concurrent_drop_of_their_client(server: Server, address: str) -> None:
    program = [sys.executable, "-c", _CALLS_WHILE_DROPPED, address, SECRET.hex()]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "alive\n", (done.returncode, done.stderr[-2000:])
