"""Where the sockets of a run are."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from millstream.spark.startup import _socket_folder


@pytest.mark.parametrize(("length", "beside"), [(20, True), (120, False)])
def test_sockets_have_short_paths_also_where_temporary_files_have_not(
    length: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    place = base / ("x" * length)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = Path(_socket_folder())
    try:
        assert folder.is_dir() and len(str(folder)) <= 80
        assert (folder.parent == place) is beside
        assert beside or list(place.iterdir()) == []
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(base)
