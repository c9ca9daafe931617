"""The options in a store's URL, after the question mark."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from millstream.errors import ConfigError

DEFAULT_PATIENCE = 30.0


def split_options(url: str, allowed: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a URL from its options; reject options that a back-end does not have."""
    bare, _, query = url.partition("?")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        scheme = url.partition(":")[0]
        if name not in allowed:
            # Anything else may be part of a password with a question mark in it.
            what = repr(name) if name.isidentifier() else "like one of those given"
            raise ConfigError(
                f"{scheme}:// has no option {what}; it has {', '.join(sorted(allowed))}"
            )
        if name in options:
            raise ConfigError(f"the option {name!r} of {scheme}:// is given twice")
        options[name] = value
    return bare, options


def patience_of(options: Mapping[str, str]) -> float:
    """For how many seconds an unavailable store is retried."""
    text = options.get("patience", "")
    if not text:
        return DEFAULT_PATIENCE
    try:
        patience = float(text)
    except ValueError:
        patience = math.nan
    if not 0 <= patience < math.inf:
        raise ConfigError(f"patience is a number of seconds, 0 or more, got {text!r}")
    return patience


def without_password(url: str) -> str:
    """A URL without its password, to be logged and recorded."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{place}"))
