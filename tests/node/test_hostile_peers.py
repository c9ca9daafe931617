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
from millstream.wire.auth import ClientAuth, new_nonce
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, call
from millstream.wire.commit import NOTHING_COMMITTED
from millstream.wire.envelope import sealed
from millstream.wire.feed import End, Feed
from millstream.wire.membership import Ping
from tests.node.test_process import Nodes, cluster, ends, folder
from tests.wire import raw_grpc

__all__ = ["folder"]

pytestmark = pytest.mark.slow

METHODS = ("DoAction", "DoExchange", "DoPut", "DoGet", "GetFlightInfo", "GetSchema", "ListActions")
SCHEMA = BLOCK_SCHEMA.serialize().to_pybytes()[8:]  # without the mark and the length before it
_ROW = pa.record_batch({name: [0] for name in BLOCK_SCHEMA.names[:-1]} | {"block": [b"x"]})
_MESSAGE = _ROW.cast(BLOCK_SCHEMA).serialize().to_pybytes()
_START = 8 + int.from_bytes(_MESSAGE[4:8], "little")
BATCH, BODY = _MESSAGE[8:_START], _MESSAGE[_START:]


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
        coordinator = nodes.coordinator
        incarnation, version = coordinator.ledger.incarnation, coordinator.roster.placement.version
        self._feed = Feed(incarnation, 0, 0, 0, 0, version, range(16), NOTHING_COMMITTED, 0)

    def attacked(self, parts: list[bytes]) -> bytes:
        """What the node answers to bytes on a new connection."""
        return raw_grpc.exchanged(self.node.address, parts)

    def fed(self, *messages: bytes, token: bytes) -> bytes:
        """What it answers to a feed of such messages, and a good end marker."""
        command = new_nonce() + pickle.dumps(self._feed, 5)
        begin = raw_grpc.flight_data(SCHEMA, command=command)
        end = raw_grpc.flight_data(b"", metadata=pickle.dumps(End(1, "digest"), 5))
        return self.attacked(raw_grpc.call("DoExchange", begin, *messages, end, token=token))

    def token(self) -> bytes:
        """Of somebody who holds the secret."""
        auth = ClientAuth(self.endpoint.secret, self.node.address)
        with flight.connect(self.node.address) as client:
            client.authenticate(auth)
        return auth.get_token()

    def forged(self) -> dict[str, bytes]:
        """Messages that run code where they are unpickled, by the method that would do so."""
        poison = new_nonce() + pickle.dumps(Trap(self.trap), 5)
        return {
            "DoAction": raw_grpc.action(sealed(new_nonce(), Trap(self.trap)).to_pybytes()),
            "DoExchange": raw_grpc.flight_data(SCHEMA, command=poison),
        }

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


@pytest.mark.parametrize("method", ["DoAction", "DoExchange"])
def test_messages_of_peers_do_reach_pickle(target: Target, method: str) -> None:
    """Else the others would prove nothing: whoever holds the secret is trusted."""
    target.attacked(raw_grpc.call(method, target.forged()[method], token=target.token()))

    assert target.trap.exists()


@pytest.mark.parametrize("token", [b"", b"z" * 32], ids=["without", "forged"])
def test_forged_messages_do_not_reach_pickle(target: Target, token: bytes) -> None:
    for method in METHODS:
        for of, message in target.forged().items():
            answer = target.attacked(raw_grpc.call(method, message, token=token))
            assert raw_grpc.UNAUTHENTICATED in answer or of != method, (method, answer)

    assert target.is_whole()


def test_oversized_frames_do_not_crash_a_node(target: Target) -> None:
    largest = 2**24 - 1
    for parts in (
        [b"\x16\x03\x01" + b"x" * 1000],  # another protocol
        [raw_grpc.begun(), raw_grpc.frame(0, 0, b"x" * 1000, length=largest)],
        [raw_grpc.begun(), raw_grpc.frame(0, 0, b"x" * largest)],
        [raw_grpc.begun(), raw_grpc.frame(1, 4, b"\x00" * largest)],
        raw_grpc.call("DoAction", b"x" * 1000, length=2**32 - 1),
        raw_grpc.call("DoAction", raw_grpc.action(b"x" * 2**26)),
    ):
        target.attacked(parts)
        assert target.is_whole()


def malformed() -> list[tuple[bytes, bytes]]:
    """Messages of an Arrow stream: metadata and body, each of them damaged in another way."""
    offsets = struct.pack("<ii", 0, 1)
    at = BODY.rindex(offsets)
    beyond = BODY[:at] + struct.pack("<ii", 0, 2**31 - 1) + BODY[at + len(offsets) :]
    before = BODY[:at] + struct.pack("<ii", -(2**31), 1) + BODY[at + len(offsets) :]
    flipped = bytes(byte ^ 0xFF if at % 7 == 0 else byte for at, byte in enumerate(BATCH))
    return [
        (b"\xff" * 100, b"\xff" * 100),
        (BATCH, BODY[:8]),
        (BATCH[:40], BODY),
        (flipped, BODY),
        (BATCH, b"\xff" * len(BODY)),
        (BATCH, beyond),
        (BATCH, before),
        (SCHEMA, b"\xff" * 2**12),
    ]


def test_a_feed_is_read_up_to_its_end_marker(target: Target) -> None:
    """So malformed ones are read as well."""
    answer = target.fed(raw_grpc.flight_data(BATCH, BODY), token=target.token())

    assert b"announced 1 blocks with digest digest, but 1 with" in answer, answer


@pytest.mark.parametrize("knows_the_secret", [False, True])
def test_malformed_arrow_streams_do_not_crash_a_node(
    target: Target, knows_the_secret: bool
) -> None:
    token = target.token() if knows_the_secret else b"z" * 32

    for header, body in malformed():
        answer = target.fed(raw_grpc.flight_data(header, body), token=token)
        assert (raw_grpc.UNAUTHENTICATED in answer) != knows_the_secret
        assert target.is_whole(), (header[:20], body[:20])
