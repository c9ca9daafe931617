from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.stores.redis_url import read_url


def test_a_url_with_all_options() -> None:
    address = read_url("redis://me:p%40ss@host:1234/5?prefix=a/&patience=2&durability=relaxed")
    assert (address.host, address.port, address.db) == ("host", 1234, 5)
    assert (address.user, address.password) == ("me", "p@ss")
    assert (address.prefix, address.patience, address.relaxed) == ("a/", 2, True)
    assert not address.tls and address.socket is None


def test_a_url_with_defaults() -> None:
    address = read_url("redis://")
    assert (address.host, address.port, address.db) == ("localhost", 6379, 0)
    assert (address.user, address.password, address.relaxed) == (None, None, False)
    assert address.prefix == "millstream/"


def test_a_server_may_be_behind_tls_or_a_socket() -> None:
    assert read_url("redis+tls://host").tls
    address = read_url("redis+unix://:secret@/run/a%20b.sock?db=3")
    assert (address.socket, address.db, address.password) == ("/run/a b.sock", 3, "secret")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+ftp://host", "none of"),
        ("redis://host?durability=maybe", "'full' or 'relaxed'"),
        ("redis://host/one", "number"),
        ("redis://host?db=-1", "number"),
        ("redis+unix://?db=1", "path of a socket"),
        ("redis://host?port=1", "no option 'port'"),
    ],
)
def test_urls_that_are_invalid_are_rejected(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_url(url)


def test_the_password_is_never_printed() -> None:
    address = read_url("redis://me:hush@host")
    assert str(address) == "redis://host:6379/0"
    assert "hush" not in repr(address)


@pytest.mark.parametrize("sign", ["/", "#", "?", "/1", "#1", "1/", "1#"])
def test_a_password_with_raw_separators_is_rejected_and_not_printed(sign: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_url(f"redis://:12{sign}hush@host/0")
    assert "hush" not in str(raised.value) + repr(raised.value.__cause__)
