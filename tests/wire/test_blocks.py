from __future__ import annotations

import pyarrow as pa

from millstream.wire.blocks import digest_of


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
