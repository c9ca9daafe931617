from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from millstream.wire.auth import NONCE_BYTES, new_secret, proved
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, UnreachableError, call, client_of, drop_client
from millstream.wire.envelope import sealed
from millstream.wire.flight_net import FlightNet
from millstream.wire.net import Delivery
from millstream.wire.serving import RunServer
from tests.wire.requests import Sent, end_of, header_of

SECRET = new_secret()
ROWS = BLOCK_SCHEMA.empty_table()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        yield Path(name)


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    address = f"grpc+unix://{folder}/s.sock"
    yield address
    drop_client(Endpoint(address, SECRET))


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


class Impostor(flight.FlightServerBase):  # type: ignore[misc]
    """Listens at the address of a dead server; answers without a handshake."""

    def __init__(
        self, address: str, answer: bytes, prove: Callable[[bytes], bytes] = lambda _: b""
    ) -> None:
        super().__init__(address)
        self._answer = answer
        self._prove = prove
        self.fails = False
        self.asked = 0

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        self.asked += 1
        answer = self._prove(action.body.to_pybytes()[:NONCE_BYTES]) + self._answer
        if self.fails:
            raise flight.FlightServerError("no", extra_info=answer)
        return [answer]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.asked += 1
        for _ in reader:
            pass
        outputs = pa.record_batch({"value": [self._answer]})
        writer.begin(outputs.schema)
        writer.write_with_metadata(outputs, self._prove(descriptor.command[:NONCE_BYTES]))


def answering(request: Sent) -> Any:
    return "honest"


def fed(header: Any, items: Iterator[Any]) -> list[pa.RecordBatch]:
    list(items)
    return [pa.record_batch({"value": ["honest"]})]


def feed(net: FlightNet, address: str) -> list[Any]:
    to, end = Delivery(address, header_of("header")), end_of("end")
    outputs = net.feed(to, [], ROWS, end, lambda: False)
    return [value for batch in outputs for value in batch.column("value").to_pylist()]


def opened(address: str) -> None:
    """Have this process hold a client that went through the handshake, and whose server went."""
    with RunServer(address, SECRET, answering, fed):
        assert call(Endpoint(address, SECRET), Sent("ask")) == "honest"
        assert feed(FlightNet(SECRET), address) == ["honest"]


def old_answer(_: bytes) -> bytes:
    return proved(SECRET, "elsewhere", bytes(NONCE_BYTES), b"")


@pytest.mark.parametrize("prove", [lambda _: b"", lambda _: bytes(32), old_answer])
@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_of_an_impostor_after_a_reconnect_is_not_unpickled(
    folder: Path, address: str, fails: bool, prove: Callable[[bytes], bytes]
) -> None:
    opened(address)
    trap = folder / "sprung"

    with Impostor(address, pickle.dumps(Trap(trap)), prove) as impostor:
        impostor.fails = fails
        with pytest.raises(UnreachableError, match="did not prove that it holds the run's secret"):
            call(Endpoint(address, SECRET), Sent("ask"), timeout=5.0)
        assert impostor.asked == 1

        # The client was dropped, and a new one begins with a handshake.
        with pytest.raises(UnreachableError):
            call(Endpoint(address, SECRET), Sent("ask"), timeout=5.0)
        assert impostor.asked == 1

    assert not trap.exists()


@pytest.mark.parametrize("prove", [lambda _: b"", lambda _: bytes(32), old_answer])
def test_outputs_of_an_impostor_after_a_reconnect_are_rejected(
    address: str, prove: Callable[[bytes], bytes]
) -> None:
    opened(address)

    with Impostor(address, b"poison", prove) as impostor:
        with pytest.raises(UnreachableError, match="did not prove that it holds the run's secret"):
            feed(FlightNet(SECRET), address)
        assert impostor.asked == 1


def test_an_impostor_cannot_use_the_proof_of_another_server_of_the_run(
    folder: Path, address: str
) -> None:
    """Nor can it pass the handshake on to that one."""
    opened(address)
    other = f"grpc+unix://{folder}/other.sock"

    with RunServer(other, SECRET, answering):

        def relayed(nonce: bytes) -> bytes:
            action = flight.Action("ask", sealed(nonce, None))
            [result] = client_of(Endpoint(other, SECRET)).do_action(action)
            return bytes(result.body)

        with Impostor(address, b"", relayed):
            with pytest.raises(UnreachableError, match="did not prove"):
                call(Endpoint(address, SECRET), Sent("ask"), timeout=5.0)
    drop_client(Endpoint(other, SECRET))


def test_a_restarted_server_of_the_run_is_accepted_after_a_handshake(
    address: str,
) -> None:
    opened(address)

    with RunServer(address, SECRET, answering, fed):
        with pytest.raises(UnreachableError):  # the token is the old server's
            call(Endpoint(address, SECRET), Sent("ask"), timeout=5.0)
        assert call(Endpoint(address, SECRET), Sent("ask")) == "honest"
        assert feed(FlightNet(SECRET), address) == ["honest"]


@pytest.mark.parametrize("size", [0, 1, 3 * 2**20])
def test_answers_of_any_size_arrive_as_they_were(address: str, size: int) -> None:
    with RunServer(address, SECRET, lambda request: request.body):
        assert call(Endpoint(address, SECRET), Sent("echo", b"x" * size)) == b"x" * size
