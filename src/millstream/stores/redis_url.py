"""The address of a Redis server, read from its URL. Its text never contains the password."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from millstream.errors import ConfigError
from millstream.stores.options import patience_of, split_options

_OPTIONS = {"prefix", "patience", "durability", "db"}
_SCHEMES = ("redis", "redis+tls", "redis+unix")
_ENCODE = "signs like '/', '#', '?' and '@' in a user's name or password are percent-encoded"


@dataclass(frozen=True)
class Address:
    """A Redis server, and a store in it."""

    host: str
    port: int
    socket: str | None
    db: int
    tls: bool
    user: str | None
    password: str | None = field(repr=False)
    prefix: str
    patience: float
    relaxed: bool

    def __str__(self) -> str:
        if self.socket is not None:
            return f"redis+unix://{self.socket}?db={self.db}"
        return f"redis{'+tls' if self.tls else ''}://{self.host}:{self.port}/{self.db}"


def read_url(url: str) -> Address:
    """Parse a URL."""
    bare, options = split_options(url, _OPTIONS)
    try:
        parts = urlsplit(bare)
        port = parts.port
    except ValueError:
        # Its text may be part of the password.
        raise ConfigError(f"the URL of redis:// cannot be read; {_ENCODE}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"{parts.scheme}:// is none of {', '.join(_SCHEMES)}")
    durability = options.get("durability", "full")
    if durability not in ("full", "relaxed"):
        raise ConfigError(f"durability is 'full' or 'relaxed', got {durability!r}")
    by_socket = parts.scheme == "redis+unix"
    db = options.get("db") or ("" if by_socket else parts.path.strip("/")) or "0"
    if not (db.isascii() and db.isdigit()) or parts.fragment:
        raise ConfigError(f"the database of redis:// is a number; {_ENCODE}")
    if by_socket and not parts.path.strip("/"):
        raise ConfigError("redis+unix:// needs the path of a socket: redis+unix:///run/redis.sock")
    return Address(
        host=parts.hostname or "localhost",
        port=port or 6379,
        socket=unquote(parts.path) if by_socket else None,
        db=int(db),
        tls=parts.scheme == "redis+tls",
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        prefix=options.get("prefix", "millstream/"),
        patience=patience_of(options),
        relaxed=durability == "relaxed",
    )
