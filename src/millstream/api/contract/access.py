"""Who may do what, login links, and why a request was refused."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.contract.terms import Right


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the caller may do, and until when."""

    workflow: str
    right: Right
    expires: float


@dataclass(frozen=True, kw_only=True)
class LoginLinkRequest:
    """Asks for a link that logs a browser in, once."""

    right: Right = "viewer"


@dataclass(frozen=True, kw_only=True)
class LoginLink:
    """A link that works once, until it ``expires``."""

    url: str
    right: Right
    expires: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request failed, and what to do about it (RFC 9457)."""

    status: int
    title: str
    detail: str
