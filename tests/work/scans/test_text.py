from __future__ import annotations

import itertools
import re
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millstream.work.scans.text import read_lines

texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff"]), max_size=30)


def lines_of(path: Path, *cuts: int, piece: int = 1 << 20) -> list[bytes]:
    """The lines of all splits of a file, which is cut at these bytes."""
    edges = [0, *cuts, path.stat().st_size]
    return [
        line.as_buffer().to_pybytes()
        for start, stop in itertools.pairwise(edges)
        for lines in read_lines(str(path), start, stop - start, piece=piece)
        for line in lines
    ]


@given(text=texts.map(b"".join), size=st.integers(1, 12), piece=st.integers(1, 12))
def test_splits_have_every_line_once_wherever_they_are_cut(
    text: bytes, size: int, piece: int
) -> None:
    expected = re.split(rb"\r\n|\n|\r", text)
    if expected[-1] == b"":
        expected.pop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_bytes(text)

        assert lines_of(path, *range(size, len(text), size), piece=piece) == expected


def test_a_byte_order_mark_is_dropped_at_the_beginning_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    mark = b"\xef\xbb\xbf"
    path.write_bytes(mark + b"a\n" + mark + b"b")

    assert lines_of(path, 5, piece=5) == [b"a", mark + b"b"]
    path.write_bytes(mark)
    assert lines_of(path) == []


def test_a_file_that_has_become_shorter_gives_the_lines_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\nbc")

    found = [line.as_py() for lines in read_lines(str(path), 0, 100) for line in lines]

    assert found == ["a", "bc"]
