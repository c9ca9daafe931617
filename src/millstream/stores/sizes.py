"""Sizes in bytes, such as ``"512MB"``."""

from __future__ import annotations

import re

from millstream.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B|)", re.IGNORECASE)


def byte_size(value: object, option: str) -> int:
    """A number of bytes, or text such as ``"512MB"`` (of 1024 x 1024 bytes each)."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        parsed = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if parsed is None:
            raise ConfigError(
                f'{option} must be a number of bytes or text such as "512MB", got {value!r}'
            )
        size = int(float(parsed[1]) * _UNITS[parsed[2].upper()])
    if size < 1:
        raise ConfigError(f"{option} must be at least one byte, got {value!r}")
    return size
