"""Calls as no client makes them: frames of HTTP/2 written by hand, to a server of the run."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Sequence
from urllib.parse import urlsplit

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 1, 4
_STREAM = 1
UNAUTHENTICATED = b"grpc-status\x0216"
LARGEST_FRAME = 16_384  # that a server takes unless it says otherwise


def exchanged(address: str, parts: Sequence[bytes], seconds: float = 2.0) -> bytes:
    """Write to a new connection; return what came back until the call ended, or for a while."""
    host = urlsplit(address)
    received = bytearray()
    with socket.create_connection((host.hostname, host.port), timeout=seconds) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while not _is_answered(received) and (part := connection.recv(65_536)):
                received += part
        except (TimeoutError, ConnectionError):
            pass
    return bytes(received)


def _is_answered(received: bytearray) -> bool:
    """Whether a frame ends the call, or the connection."""
    at = 0
    while at + 9 <= len(received):
        length = int.from_bytes(received[at : at + 3])
        kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
        at += 9 + length
        if kind in (_RESET, _GOAWAY) or (stream == _STREAM and flags & _END_STREAM):
            return at <= len(received)
    return False


def call(
    method: str, *messages: bytes, length: int | None = None, token: bytes = b""
) -> list[bytes]:
    """A call of Flight; ``length`` is what the prefix of each message claims that it has."""
    stream = b"".join(
        struct.pack(">BI", 0, len(message) if length is None else length) + message
        for message in messages
    )
    chunks = [stream[at : at + LARGEST_FRAME] for at in range(0, len(stream), LARGEST_FRAME)]
    last = len(chunks) - 1
    return [
        begun(),
        frame(_HEADERS, _END_HEADERS, _headers(method, token)),
        *(frame(_DATA, _END_STREAM * (at == last), part) for at, part in enumerate(chunks)),
    ]


def begun() -> bytes:
    """The beginning of a connection."""
    return _PREFACE + frame(_SETTINGS, 0, b"", stream=0)


def frame(
    kind: int, flags: int, content: bytes, *, stream: int = _STREAM, length: int | None = None
) -> bytes:
    """A frame; ``length`` is what it claims to be, if it lies."""
    claimed = len(content) if length is None else length
    return struct.pack(">I", claimed)[1:] + struct.pack(">BBI", kind, flags, stream) + content


def flight_data(
    header: bytes, body: bytes = b"", *, command: bytes = b"", metadata: bytes = b""
) -> bytes:
    """A ``FlightData`` message; its Arrow message, header and body, may be any bytes."""
    descriptor = b"\x08\x02" + _field(2, command) if command else b""
    fields = {1: descriptor, 2: header, 3: metadata, 1000: body}
    return b"".join(_field(number, content) for number, content in fields.items() if content)


def action(body: bytes) -> bytes:
    """An ``Action`` message."""
    return _field(1, b"request") + _field(2, body)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _headers(method: str, token: bytes) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/arrow.flight.protocol.FlightService/{method}",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    if token:
        fields["auth-token-bin"] = base64.b64encode(token).decode().rstrip("=")
    # Literals that are not indexed: no name or value here is as long as 127 bytes.
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
