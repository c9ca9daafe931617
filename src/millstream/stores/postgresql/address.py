"""The address of a store: its URL, split into the options of libpq and ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from millstream.errors import ConfigError
from millstream.stores.options import patience_of, split_options

_OURS = ("connections", "patience", "replicas", "table")
_TABLE = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
# A server that is cut off, or whose machine is lost, is detected after some 15 seconds.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


@dataclass(frozen=True)
class Address:
    """The servers, the table on them, and how they are used."""

    place: str
    parameters: Mapping[str, str] = field(repr=False)  # with the password
    table: str = "millstream"
    patience: float = 30.0
    replicas: int = 0
    connections: int = 8

    @classmethod
    def parse(cls, url: str, writer: str) -> Address:
        """Parse a URL; errors do not contain its password."""
        bare, _, query = url.partition("?")
        authority, _, path = bare.partition("://")[2].partition("/")
        if authority.count("@") > 1 or "@" in path or "@" in query:
            raise ConfigError(
                "postgresql:// has a '@' too many: in user, password and options write it as %40, "
                "'/' as %2F and '?' as %3F"
            )
        ours, theirs = _split_query(query)
        _, options = split_options(f"postgresql://?{ours}", _OURS)
        given = _given(f"{bare}?{theirs}" if theirs else bare)
        table = options.get("table", cls.table)
        if not _TABLE.fullmatch(table):
            raise ConfigError(
                "table must be a name, or schema.name, in lower-case letters, digits and '_', got "
                f"{table!r}"
            )
        hosts = authority.rpartition("@")[2] or given.get("host", "")
        return cls(
            place=f"postgresql://{hosts}/{given.get('dbname', '')}",
            parameters={
                **_DEFAULTS,
                "application_name": f"millstream {writer}"[:63],
                **given,
                "client_encoding": "UTF8",
                "target_session_attrs": "read-write",
            },
            table=table,
            patience=patience_of(options),
            replicas=_number(options, "replicas", cls.replicas, least=0),
            connections=_number(options, "connections", cls.connections, least=1),
        )

    def starting_at(self, turn: int) -> dict[str, str]:
        """The parameters, with another one of several servers first."""
        parameters = dict(self.parameters)
        for name in parameters.keys() & {"host", "hostaddr", "port"}:
            each = parameters[name].split(",")
            first = turn % len(each)
            parameters[name] = ",".join(each[first:] + each[:first])
        return parameters

    def redacted(self, text: str) -> str:
        """A message of the server without the password."""
        password = self.parameters.get("password")
        return text.replace(password, "***") if password else text


def _split_query(query: str) -> tuple[str, str]:
    """Our options and those of libpq, as the URL has them."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} | {"ssl"}
    ours: list[str] = []
    theirs: list[str] = []
    for option in filter(None, query.split("&")):
        name = unquote(option.partition("=")[0])
        (theirs if name in known else ours).append(option)
    return "&".join(ours), "&".join(theirs)


def _given(url: str) -> dict[str, str]:
    """The parameters of libpq in a URL."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        for number in (given.get("connect_timeout", ""), *given.get("port", "").split(",")):
            int(number or 0)
    except (psycopg.ProgrammingError, ValueError):
        # Without the cause, which quotes the URL.
        raise ConfigError(
            "this is not a URL of PostgreSQL; write "
            "postgresql://user:password@host1:5432,host2:5432/database?option=value, with "
            "everything but letters and digits in user and password percent-encoded"
        ) from None
    return given


def _number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < least:
        raise ConfigError(f"{name} must be a whole number, {least} or more, got {text!r}")
    return int(text)
