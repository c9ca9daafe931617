"""The lines of a split of a text file, as Spark's text source reads them.

A line ends with ``\\n``, ``\\r`` or ``\\r\\n``. A split owns the lines that begin after its first
byte, up to the one that begins right after its last; the first split of a file also owns the first
line. A byte order mark is dropped. Bytes are not decoded: they need not be UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa

PIECE = 1 << 20  # what is made of a piece remains in the processor's cache
_BLOCK = 1 << 16
_LINE_END = re.compile(rb"[\r\n]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str, start: int, length: int, *, piece: int = PIECE) -> Iterator[pa.Array]:
    """The lines of a split, about a megabyte at a time."""
    with open(path, "rb") as file:
        first = _next_line(file, start) if start else 0
        stop = _next_line(file, start + length)
        for number, data in enumerate(_pieces(file, first, stop, piece)):
            if not start and not number:
                data = data.removeprefix(_BYTE_ORDER_MARK)
            if data:
                yield _lines(data)


def _next_line(file: BinaryIO, position: int) -> int:
    """Where the next line begins that a split owns which begins here; or the end of the file."""
    file.seek(position)
    while block := file.read(_BLOCK):
        found = _LINE_END.search(block)
        if found is None:
            position += len(block)
            continue
        after = block[found.end() : found.end() + 1] or file.read(1)
        pair = found.group() == b"\r" and after == b"\n"
        return position + found.end() + pair
    return position


def _pieces(file: BinaryIO, start: int, stop: int, piece: int) -> Iterator[bytes]:
    """The bytes of a range, cut at ends of lines."""
    file.seek(start)
    rest: list[bytes] = []  # joined once, as a line may consist of many
    while start < stop and (read := file.read(min(piece, stop - start))):
        start += len(read)
        # A \r at the end may be the first half of an end of line.
        cut = read.rfind(b"\n") + 1 or read.rfind(b"\r", 0, len(read) - 1) + 1
        if start == stop:
            cut = len(read)
        if cut:
            yield b"".join((*rest, read[:cut]))
            rest = []
        if cut < len(read):
            rest.append(read[cut:])
    if rest:  # the file is shorter than it was
        yield b"".join(rest)


def _lines(data: bytes) -> pa.Array:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends - np.arange(len(ends))
    # The cast fails for a line of more than 2 GiB, which Spark cannot read, either.
    _, starts = pa.array(offsets).cast(pa.int32()).buffers()
    return pa.StringArray.from_buffers(len(ends), starts, pa.py_buffer(data.translate(None, b"\n")))
