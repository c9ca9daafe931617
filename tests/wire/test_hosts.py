from __future__ import annotations

import socket
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.wire.hosts import check_host, check_reachable

WILDCARDS = ["0.0.0.0", "0", "0.0", "0x0", "000.0.0.0", "[::]", "::", "", "*", "[0:0::0]"]


@pytest.mark.parametrize("host", [*WILDCARDS, "[::ffff:0.0.0.0]", "host:80", "[::1]:80", 5, None])
def test_a_wildcard_in_any_spelling_is_refused(host: object) -> None:
    with pytest.raises(ConfigError, match="listen must be a host name or address"):
        check_host(host)


@pytest.mark.parametrize("host", ["host.example", "10.0.0.1", "[::1]", "127.0.0.2", "10", "a-b.c"])
def test_a_host_is_taken(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_a_name_for_all_addresses_is_rejected(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    found: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)

    with pytest.raises(ConfigError, match="every address of the driver"):
        check_reachable("everywhere.example")


def test_a_name_that_does_not_resolve_is_rejected() -> None:
    with pytest.raises(ConfigError, match="cannot resolve this host"):
        check_reachable("nobody.invalid")


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_an_address_of_this_host_is_reachable(host: str) -> None:
    check_reachable(host)
