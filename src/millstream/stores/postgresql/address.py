"""Where a store is: the URL, cut into what libpq takes and what is for us."""

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
# A server that is cut off, or whose machine is gone, is noticed after some 15 seconds.
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
        """Read a URL; what is wrong with it is told without the password that it may hold."""
        bare, _, query = url.partition("?")
        authority, _, path = bare.partition("://")[2].partition("/")
        if authority.count("@") > 1 or "@" in path or "@" in query:
            raise ConfigError(
                "postgresql:// has a '@' where none belongs: in user, password and options it is "
                "written %40, as '/' is %2F and '?' is %3F"
            )
        ours, theirs = _divide(query)
        _, options = split_options(f"postgresql://?{ours}", _OURS)
        given = _given(f"{bare}?{theirs}" if theirs else bare)
        table = options.get("table", cls.table)
        if not _TABLE.fullmatch(table):
            raise ConfigError(
                "table must be a name, or schema.name, in small letters, digits and '_', got "
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

    def beginning_at(self, turn: int) -> dict[str, str]:
        """The parameters, with another one of several servers first."""
        parameters = dict(self.parameters)
        for name in parameters.keys() & {"host", "hostaddr", "port"}:
            each = parameters[name].split(",")
            first = turn % len(each)
            parameters[name] = ",".join(each[first:] + each[:first])
        return parameters

    def without_password(self, text: str) -> str:
        """A text from elsewhere that may go into an error."""
        password = self.parameters.get("password")
        return text.replace(password, "***") if password else text


def _divide(query: str) -> tuple[str, str]:
    """Our options and those of libpq, as they stand in the URL."""
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
            "this is no URL of PostgreSQL; it is written "
            "postgresql://user:password@host1:5432,host2:5432/database?option=value, with what is "
            "no letter or digit in user and password percent-encoded"
        ) from None
    return given


def _number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < least:
        raise ConfigError(f"{name} must be a whole number, {least} or more, got {text!r}")
    return int(text)
