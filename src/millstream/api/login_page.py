"""The page for a browser without a valid login: how to get a login link.

Only a client that prefers HTML gets it; the others get the error as JSON, and so does every request
to the API and for metrics.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from string import Template

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from millstream.api.problems import problem_response
from millstream.api.tokens import LINK_LIFETIME
from millstream.dashboard import LOGIN_PAGE

_FOR_TOOLS = ("/api/", "/metrics")
_JSON = ("application/json", "application/problem+json")


def unauthorised(scope: Scope, detail: str, reason: str) -> Response:
    """The answer to a request without a valid login: ``reason`` on a page, or ``detail`` as JSON.

    The policy of the page permits its own styles by their hash, and nothing else.
    """
    if not _is_browser(scope):
        answer = problem_response(401, detail)
    else:
        page, styles = _page()
        shown = page.substitute(reason=html.escape(reason), minutes=f"{LINK_LIFETIME / 60:.0f}")
        policy = (
            f"default-src 'none'; style-src '{styles}'; img-src data:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "WWW-Authenticate": "Bearer"}
        answer = HTMLResponse(shown, 401, headers)
    answer.headers["Vary"] = "Accept"
    return answer


def _is_browser(scope: Scope) -> bool:
    if scope["path"].startswith(_FOR_TOOLS):
        return False
    accepted = _qualities(Headers(scope=scope).get("accept", ""))
    wanted = accepted.get("text/html", 0.0)
    return wanted > max(accepted.get(media, 0.0) for media in _JSON)


def _qualities(accept: str) -> dict[str, float]:
    """The media types of an ``Accept`` header by name, without wildcards' expansion."""
    found = {}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((p.removeprefix("q=") for p in parameters if p.startswith("q=")), "1")
        try:
            found[media] = float(quality)
        except ValueError:
            found[media] = 0.0
    return found


@cache
def _page() -> tuple[Template, str]:
    """The page, and the hash of its styles for its policy."""
    text = LOGIN_PAGE.read_text(encoding="utf-8")
    styles = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    return Template(text), f"sha256-{digest}"
