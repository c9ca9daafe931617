from __future__ import annotations

import importlib.util
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from millstream.errors import ConfigError
from millstream.wire.auth import new_secret
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, UnreachableError, call
from millstream.wire.flight_net import FlightNet
from millstream.wire.net import Delivery
from millstream.wire.serving import RunServer, tcp_address
from millstream.wire.tls import Identity, new_identity
from tests.wire.requests import Sent, end_of, header_of

SECRET = new_secret()
HOSTS = ("127.0.0.2", "127.0.0.3")
TEXT = "a value that nobody on the network may read"


@pytest.fixture(scope="module")
def identity() -> Identity:
    return new_identity()


def echo(request: Sent) -> Any:
    return request.body


def fed(header: Any, items: Iterator[Any]) -> list[pa.RecordBatch]:
    return [item for item in items if isinstance(item, pa.RecordBatch)]


@contextmanager
def servers(identity: Identity | None) -> Iterator[list[RunServer]]:
    """One server on each of two addresses of this machine."""
    running = [
        RunServer(tcp_address(host, identity), SECRET, echo, fed, identity) for host in HOSTS
    ]
    try:
        yield running
    finally:
        for server in running:
            server.shutdown()


def rows(text: str) -> pa.Table:
    row = (0, 0, 0, 0, 0, 0, 1, text.encode())
    return pa.table([[value] for value in row], schema=BLOCK_SCHEMA)


class Wiretap:
    """Passes on what goes to a server, and keeps a copy of it."""

    def __init__(self, server: RunServer) -> None:
        host, port = server.endpoint.address.split("//")[1].rsplit(":", 1)
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.heard = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.heard += data
                sink.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()


def test_servers_on_several_addresses_share_the_certificate_of_the_run(
    identity: Identity,
) -> None:
    with servers(identity) as running:
        for server in running:
            assert server.endpoint.address.startswith("grpc+tls://")
            net = FlightNet.to(server.endpoint)
            assert net.call(server.endpoint.address, Sent("echo", TEXT)) == TEXT
            [output] = net.feed(
                Delivery(server.endpoint.address, header_of(None)),
                [],
                rows(TEXT),
                end_of(None),
                lambda: False,
            )
            assert output.column("block").to_pylist() == [TEXT.encode()]


@pytest.mark.parametrize("encrypted", [False, True])
def test_traffic_can_be_read_only_without_encryption(
    identity: Identity, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers(identity if encrypted else None) as running:
        tap = Wiretap(running[0])
        near = running[0].endpoint
        scheme = near.address.split("//")[0]
        # The wire is tapped on the way to the address, which the proofs are about.
        through = f"{scheme}//127.0.0.1:{tap.port}"
        real = flight.connect
        monkeypatch.setattr(flight, "connect", lambda address, **options: real(through, **options))
        assert call(near, Sent("echo", TEXT)) == TEXT
        tap.close()

    assert (TEXT.encode() in tap.heard) is not encrypted
    assert len(tap.heard) > len(TEXT)


def test_a_server_with_another_certificate_is_not_spoken_to(identity: Identity) -> None:
    other = new_identity()
    seen: list[str] = []

    def answer(request: Sent) -> None:
        seen.append(request.action)

    server = RunServer(tcp_address(HOSTS[0], other), SECRET, answer, identity=other)
    pinned = Endpoint(server.endpoint.address, SECRET, identity.certificate)

    with pytest.raises(UnreachableError):
        call(pinned, Sent("echo", TEXT), timeout=5.0)
    assert seen == []
    assert call(server.endpoint, Sent("echo")) is None
    server.shutdown()


def test_a_caller_without_the_certificate_reaches_nothing(identity: Identity) -> None:
    with servers(identity) as running:
        plain = Endpoint(running[0].endpoint.address.replace("grpc+tls", "grpc"), SECRET)
        with pytest.raises(UnreachableError):
            call(plain, Sent("echo", TEXT), timeout=5.0)


def test_an_identity_pickles_and_its_repr_hides_the_key(identity: Identity) -> None:
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert "PRIVATE" not in repr(identity)
    assert b"PRIVATE KEY" in identity.key and b"PRIVATE" not in identity.certificate


def test_without_the_extra_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"millstream\[tls\].*encrypt=False"):
        new_identity()
