"""The option ``dashboard=``: where the HTTP API of a run listens, if it does."""

from __future__ import annotations

import importlib.util
from typing import Literal, Protocol

from millstream.errors import ConfigError

LOOPBACK = ("127.0.0.1", 0)
_NEEDED = ("starlette", "uvicorn")


class Dashboard(Protocol):
    """The HTTP API of a run, as its handle sees it."""

    def login_link(self, right: Literal["viewer", "operator"]) -> str:
        """A link that logs a browser in, once."""


def check_dashboard(option: object) -> None:
    """Raise ``ConfigError`` unless it is True, False, None or an address."""
    address_of(option)
    if option not in (None, False) and not is_installed():
        raise ConfigError(
            "dashboard= needs more packages: pip install 'millstream[dashboard]', or leave it out"
        )


def address_of(option: object) -> tuple[str, int] | None:
    """Where to listen: host and port, 0 for any; None for no dashboard."""
    if option is None or option is True:
        return LOOPBACK if is_installed() else None
    if option is False:
        return None
    if isinstance(option, str):
        host, colon, port = option.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if colon and host and port.isascii() and port.isdigit() and int(port) < 65536:
            return host, int(port)
    raise ConfigError(
        'dashboard must be True, False, or an address such as "127.0.0.1:8080" (port 0: any), '
        f"got {option!r}"
    )


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)
