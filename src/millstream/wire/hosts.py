"""Host names and addresses on which a run may listen.

Others must be able to connect to the very text that a server listens on: a wildcard, in whatever
spelling, names no host to them.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from millstream.errors import ConfigError

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+]")


def check_host(host: object) -> None:
    """Raise unless this may be the name or address of one host; looks nothing up."""
    if not isinstance(host, str) or not _HOST.fullmatch(host) or _is_wildcard(_literal(host)):
        raise ConfigError(
            "listen must be a host name or address of the driver that executors can reach, not a "
            f"wildcard, and without a port, got {host!r}"
        )


def check_reachable(host: str) -> None:
    """Raise if a name is not known here, or is one for all addresses."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise ConfigError(
            f"listen={host!r}: the driver does not know this host ({problem}); pass a name or "
            "address of the driver that executors can reach"
        ) from None
    if any(_is_wildcard(str(address[0])) for *_, address in found):
        raise ConfigError(
            f"listen={host!r} stands for every address of the driver; pass the one that executors "
            "can reach"
        )


def _literal(host: str) -> str:
    """An address as it is usually written, where a text is one; "0" and "0x0" are 0.0.0.0."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host.strip("[]")


def _is_wildcard(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_unspecified or (mapped is not None and mapped.is_unspecified)
