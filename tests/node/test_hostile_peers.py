"""A node process that listens on the network, and what strangers send it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from millstream.node.process import Started
from millstream.wire.auth import NONCE_BYTES, ClientAuth, new_nonce
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, call
from millstream.wire.membership import Ping
from tests.node.test_process import Nodes, cluster, ends, folder
from tests.wire import raw_grpc

__all__ = ["folder"]

pytestmark = pytest.mark.slow

METHODS = ("DoAction", "DoExchange", "DoPut", "DoGet", "GetFlightInfo", "GetSchema", "ListActions")


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


class Target:
    """A node, what it is attacked with, and whether it still works."""

    def __init__(self, nodes: Nodes, node: Started, folder: Path) -> None:
        self.node = node
        self.endpoint: Endpoint = replace(nodes.server.endpoint, address=node.address)
        self.trap = folder / "sprung"
        self.poison = new_nonce() + pickle.dumps(Trap(self.trap), 5)

    def attacked(self, parts: list[bytes]) -> bytes:
        """What the node answers to bytes on a new connection."""
        return raw_grpc.exchanged(self.node.address, parts)

    def token(self) -> bytes:
        """Of somebody who holds the secret."""
        auth = ClientAuth(self.endpoint.secret, self.node.address)
        with flight.connect(self.node.address) as client:
            client.authenticate(auth)
        return auth.get_token()

    def is_whole(self) -> bool:
        return (
            not self.trap.exists()
            and not ends(self.node, 0.2)
            and call(self.endpoint, Ping()) == self.node.node
        )


@pytest.fixture
def target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with cluster(folder, monkeypatch) as nodes:
        node = nodes.start("alone", "127.0.0.1")
        nodes.begin(node)
        assert node.address.startswith("grpc://127.0.0.1:")
        yield Target(nodes, node, folder)


def test_a_trap_springs_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("token", [b"", b"z" * 32], ids=["without", "forged"])
def test_forged_messages_do_not_reach_pickle(target: Target, token: bytes) -> None:
    messages = (
        raw_grpc.action(target.poison),
        raw_grpc.flight_data(target.poison, b"", b""),
        target.poison,
    )

    for method in METHODS:
        for message in messages:
            answer = target.attacked(raw_grpc.call(method, message, token=token))
            assert b"grpc-status" in answer or b"HTTP" not in answer

    assert target.is_whole()


def test_oversized_frames_do_not_crash_a_node(target: Target) -> None:
    largest = 2**24 - 1
    claimed = raw_grpc.frame(0, 0, b"x" * 1000, length=largest)
    whole = raw_grpc.frame(0, 0, b"x" * largest)
    headers = raw_grpc.frame(1, 4, b"\x00" * largest)
    message = raw_grpc.call("DoAction", b"x" * 1000, length=2**32 - 1)
    large = raw_grpc.call("DoAction", raw_grpc.action(b"x" * 2**26))

    for parts in (
        [b"\x16\x03\x01" + b"x" * 1000],
        [raw_grpc.begun(), claimed],
        [raw_grpc.begun(), whole],
        [raw_grpc.begun(), headers],
        message,
        large,
    ):
        target.attacked(parts)
        assert target.is_whole()


def malformed() -> list[tuple[bytes, bytes]]:
    """Messages of an Arrow stream: metadata and body, each of them damaged in another way."""
    blocks = pa.record_batch({name: [0] for name in BLOCK_SCHEMA.names[:-1]} | {"block": [b"x"]})
    batch = blocks.cast(BLOCK_SCHEMA).serialize().to_pybytes()
    schema = BLOCK_SCHEMA.serialize().to_pybytes()
    (length,) = struct.unpack_from("<i", batch, 4)
    metadata, body = batch[8 : 8 + length], batch[8 + length :]
    flipped = bytes(byte ^ 0xFF if at % 7 == 0 else byte for at, byte in enumerate(metadata))
    return [
        (b"", b""),
        (b"\xff" * 100, b"\xff" * 100),
        (metadata, body),  # without a schema before it
        (metadata, body[:8]),
        (flipped, body),
        (schema[8:], b"\xff" * 2**20),
    ]


@pytest.mark.parametrize("knows_the_secret", [False, True])
def test_malformed_arrow_streams_do_not_crash_a_node(
    target: Target, knows_the_secret: bool
) -> None:
    token = target.token() if knows_the_secret else b"z" * 32
    command = target.poison[:NONCE_BYTES] + pickle.dumps("no feed", 5)

    for header, body in malformed():
        for method in ("DoExchange", "DoPut"):
            message = raw_grpc.flight_data(command, header, body)
            target.attacked(raw_grpc.call(method, message, token=token))
            assert target.is_whole(), (method, header[:20])
