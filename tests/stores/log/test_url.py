"""What may stand in the URL of a log, and what is said of the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.stores.log.options import LogOptions, parse_url
from millstream.stores.registry import open_store


def test_options_are_read_from_the_url() -> None:
    url = "log:///data/my%20log?segment=8MiB&flush=1KB&patience=2&orphan=60&grace=5"
    options = LogOptions(segment=8 << 20, flush=1024, patience=2.0, orphan=60.0, grace=5.0)
    assert parse_url(url) == ("/data/my log", False, options)


@pytest.mark.parametrize(
    ("url", "place", "remote"),
    [
        ("log:///a", "/a", False),
        ("log+file:///a", "/a", False),
        ("log+s3://bucket/a", "s3://bucket/a", True),
        ("log+memory://a", "memory://a", True),
    ],
)
def test_where_a_log_is(url: str, place: str, remote: bool) -> None:
    assert parse_url(url) == (place, remote, LogOptions())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("log://relative/folder", "absolute folder"),
        ("log+://x", "has no file system"),
        ("log:///a?segments=1MB", "'segments'.*flush, grace, orphan, patience, segment"),
        ("log:///a?segment=big", "segment must be a number of bytes"),
        ("log:///a?segment=1", "segment must be at least 4096"),
        ("log:///a?orphan=never", "orphan is a number of seconds.*'never'"),
        ("log:///a?grace=-1", "grace is a number of seconds"),
        ("log:///a?patience=x", "patience is a number of seconds"),
        ("log:///a?flush=1MB&flush=2MB", "'flush'.*twice"),
        ("log+nonsense://a", "cannot be opened"),
        ("log+data://a", "exclusively"),
    ],
)
def test_what_is_wrong_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url, "w")


def test_a_folder_needs_no_fsspec(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["fsspec"] = None
from millstream.errors import ConfigError
from millstream.stores.registry import open_store
store = open_store("log://{tmp_path}/log", "w")
store.put({{"a": b"1"}})
store.close()
try:
    open_store("log+memory://x", "w")
except ConfigError as error:
    assert "millstream[objects]" in str(error), error
else:
    raise SystemExit("opened")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
