"""The body of a call on the wire: its nonce, the message pickled, and the message's buffers.

Arrow buffers of a message stay out of its pickle (protocol 5, out-of-band): to pickle and unpickle
tens of megabytes would hold the interpreter's lock, and so block all threads of a process, each
time. Here they are copied once, without the lock, and are read where they arrived.
"""

from __future__ import annotations

import pickle
import struct
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from millstream.wire.auth import NONCE_BYTES
from millstream.wire.pickled_once import PickledOnce

_NUMBER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def sealed(nonce: bytes, message: object) -> pa.Buffer:
    """Serialise a message for the wire."""
    buffers: list[pickle.PickleBuffer] = []
    if isinstance(message, PickledOnce):
        pickled = message.message
    else:
        pickled = pickle.dumps(message, 5, buffer_callback=buffers.append)
    if not buffers:  # nearly always, and then this is several times faster
        head = (nonce, _NUMBER.pack(1), _LENGTH.pack(len(pickled)))
        return pa.py_buffer(b"".join((*head, pickled)))
    parts = [pickled, *(pa.py_buffer(buffer) for buffer in buffers)]
    lengths = [_LENGTH.pack(len(part)) for part in parts]
    fields = [nonce, _NUMBER.pack(len(parts)), *lengths, *parts]
    body = pa.allocate_buffer(sum(map(len, fields)))
    writer = pa.FixedSizeBufferWriter(body)
    for field in fields:
        writer.write(field)
    return body


def nonce_of(body: pa.Buffer) -> bytes:
    """The nonce of a call; its message is not unpickled."""
    return bytes(body.slice(0, NONCE_BYTES))


def opened(body: pa.Buffer) -> Any:
    """Unpickle the message of an authenticated caller; its buffers are slices of the body."""
    content = memoryview(body)
    (number,) = _NUMBER.unpack_from(content, NONCE_BYTES)
    start = NONCE_BYTES + _NUMBER.size
    first = start + number * _LENGTH.size
    if number == 1:
        return pickle.loads(content[first:])
    lengths = [length for (length,) in _LENGTH.iter_unpack(content[start:first])]
    pickled, *buffers = (
        body.slice(at, end - at) for at, end in pairwise(accumulate(lengths, initial=first))
    )
    return pickle.loads(pickled, buffers=buffers)
