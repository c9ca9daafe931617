"""Host names and addresses on which a run may listen.

Other processes connect to the same text that a server listens on, so a wildcard address, in any
spelling, is rejected.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from millstream.errors import ConfigError

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+]")


def check_host(host: object) -> None:
    """Raise unless this may be the name or address of one host; without a DNS lookup."""
    if not isinstance(host, str) or not _HOST.fullmatch(host) or _is_wildcard(_literal(host)):
        raise ConfigError(
            "listen must be a host name or address of the driver that executors can reach, not a "
            f"wildcard, and without a port, got {host!r}"
        )


def check_reachable(host: str) -> None:
    """Raise if a name does not resolve here, or resolves to a wildcard address."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise ConfigError(
            f"listen={host!r}: the driver cannot resolve this host ({problem}); pass a name or "
            "address of the driver that executors can reach"
        ) from None
    if any(_is_wildcard(str(address[0])) for *_, address in found):
        raise ConfigError(
            f"listen={host!r} resolves to every address of the driver; pass the one that executors "
            "can reach"
        )


def _literal(host: str) -> str:
    """Normalise an address; "0" and "0x0" are 0.0.0.0."""
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
