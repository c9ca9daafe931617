from __future__ import annotations

import pyarrow as pa

from millstream.wire.blocks import buffers_of, digest_of


def digest(*blocks: tuple[tuple[int, int, int], bytes]) -> str:
    return digest_of((origin, pa.py_buffer(data)) for origin, data in blocks)


def test_the_digest_depends_on_content_origin_and_order() -> None:
    one, other = ((0, 0, 0), b"a"), ((0, 1, 0), b"b")
    found = [
        digest(),
        digest(one),
        digest(other),
        digest(one, other),
        digest(other, one),
        digest(((0, 0, 0), b"b")),
        digest(((0, 0, 1), b"a")),
        digest(((0, 0, 0), b"")),
    ]

    assert len(set(found)) == len(found)
    assert digest(one, other) == digest(one, other)


def test_the_buffers_of_blocks_are_where_the_blocks_are() -> None:
    """A copy of a large block would hold the interpreter while it is made."""
    column = pa.array([b"one", b"", b"three" * 1000, b"four"], pa.binary())
    data = column.buffers()[2]

    for part in (column, column.slice(1, 2), column.slice(4)):
        found = buffers_of(part)

        assert [bytes(buffer) for buffer in found] == part.to_pylist()
        assert all(data.address <= f.address <= data.address + data.size for f in found)
