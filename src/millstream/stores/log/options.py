"""The URL of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from urllib.parse import unquote

from millstream.errors import ConfigError
from millstream.stores.options import DEFAULT_PATIENCE, patience_of, split_options
from millstream.stores.sizes import byte_size

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of a log; sizes in bytes, times in seconds."""

    segment: int = 64 * _MIB  # a segment of this size is sealed
    flush: int = 64 * _MIB  # the index is flushed after this many bytes, more if it is large
    patience: float = DEFAULT_PATIENCE
    orphan: float = 3600.0  # a segment that is unchanged for so long is orphaned
    grace: float = 60.0  # tombstones are retained at least this long

    def __post_init__(self) -> None:
        if self.segment < 4096:
            raise ConfigError(f"segment must be at least 4096 bytes, got {self.segment}")


_SIZES = ("segment", "flush")
_TIMES = ("orphan", "grace")


def parse_url(url: str) -> tuple[str, bool, LogOptions]:
    """The place of a log, whether it is one of fsspec, and the options."""
    bare, options = split_options(url, {*_SIZES, *_TIMES, "patience"})
    sizes = {
        name: byte_size(options[name].replace("iB", "B"), name)
        for name in _SIZES
        if name in options
    }
    times = {name: _seconds(name, options[name]) for name in _TIMES if name in options}
    parsed = LogOptions(
        segment=sizes.get("segment", LogOptions.segment),
        flush=sizes.get("flush", LogOptions.flush),
        patience=patience_of(options),
        orphan=times.get("orphan", LogOptions.orphan),
        grace=times.get("grace", LogOptions.grace),
    )
    scheme, _, rest = bare.partition("://")
    _, plus, protocol = scheme.partition("+")
    if plus and not protocol:
        raise ConfigError(f"{bare!r} has no file system; write log+s3://bucket/prefix")
    if plus and protocol not in ("file", "local"):
        return f"{protocol}://{rest}", True, parsed
    # Not through fsspec, whose local files cannot be created exclusively.
    folder = unquote(rest)
    if not folder.startswith("/"):
        raise ConfigError(f"log:// takes an absolute folder, as in log:///folder; got {bare!r}")
    return folder, False, parsed


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"{name} is a number of seconds, 0 or more, got {text!r}")
    return seconds
