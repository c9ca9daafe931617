from __future__ import annotations

import pyarrow as pa

from millstream.wire.auth import new_nonce
from millstream.wire.envelope import nonce_of, opened, sealed


def test_a_message_is_opened_as_it_was_sealed() -> None:
    nonce, message = new_nonce(), ("copy", {"delta": pa.py_buffer(b"x" * 1000)}, [b"small", None])

    body = sealed(nonce, message)

    assert nonce_of(body) == nonce
    assert opened(body) == message


def test_a_message_without_buffers_and_one_with_several_are_opened() -> None:
    several = tuple(pa.py_buffer(bytes([at]) * at) for at in range(4))

    assert opened(sealed(new_nonce(), None)) is None
    assert opened(sealed(new_nonce(), several)) == several


def test_a_buffer_is_read_where_it_arrived() -> None:
    """A copy of a large delta would hold the interpreter while it is made."""
    body = sealed(new_nonce(), pa.py_buffer(b"x" * 1_000_000))

    found = opened(body)

    assert body.address <= found.address <= body.address + body.size - found.size
