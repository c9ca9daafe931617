"""Who may do what: tokens, rights, login links, other sites, sizes and rates."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.api.contract import Right
from millstream.api.guard import LOGIN, MOST_BYTES
from millstream.api.openapi import description
from millstream.api.tokens import LINK_LIFETIME, SESSION_LIFETIME, TOKEN_LIFETIME
from tests.api.conftest import Scene

ENDPOINTS = [
    (method.upper(), path, operation["x-right"])
    for path, methods in description("1")["paths"].items()
    for method, operation in methods.items()
] + [("GET", "/", "viewer"), ("GET", "/assets/page.js", "viewer")]
COOKIE = "millstream_1"
CHANGES = [path for _, path, right in ENDPOINTS if right == "operator"]


@pytest.mark.parametrize(("method", "path", "right"), ENDPOINTS)
def test_every_endpoint_refuses_a_missing_wrong_or_expired_token(
    scene: Scene, method: str, path: str, right: Right
) -> None:
    expired = scene.tokens.issue(right)
    scene.clock.now += TOKEN_LIFETIME

    for header in (None, "Bearer wrong", f"Bearer {expired.text}", f"Basic {expired.text}", "x"):
        headers = {} if header is None else {"Authorization": header}
        answer = scene.client().request(method, path, headers=headers, json={})
        assert answer.status_code == 401, (header, answer.text)
    assert scene.run.changes == []


@pytest.mark.parametrize(("method", "path", "right"), ENDPOINTS)
def test_every_endpoint_refuses_what_was_used_before(
    scene: Scene, method: str, path: str, right: Right
) -> None:
    """Codes of links that were followed, sessions that have ended, and tokens of another run."""
    code = scene.tokens.login_code(right).text
    browser = scene.client()
    assert browser.get(f"/login?code={code}").status_code == 303
    session = browser.cookies[COOKIE]
    assert session != code
    scene.clock.now += SESSION_LIFETIME
    replayed = {"code": code, "session": session, "token": Scene().tokens.issue(right).text}

    for what, text in replayed.items():
        for headers in (
            {"Authorization": f"Bearer {text}"},
            {"Cookie": f"{COOKIE}={text}", "Origin": "http://127.0.0.1:1"},
        ):
            answer = scene.client().request(method, path, headers=headers, json={})
            assert answer.status_code == 401, (what, answer.text)
    assert scene.run.changes == []


def test_every_route_is_among_the_endpoints(scene: Scene) -> None:
    guard: Any = scene.app
    served = {route.path for route in guard._app.routes} - {LOGIN}
    assert {path.replace("/page.js", "") for _, path, _ in ENDPOINTS} == served


@pytest.mark.parametrize("path", CHANGES)
def test_a_viewer_changes_nothing(scene: Scene, path: str) -> None:
    body = {"nodes": 1, "node": "0", "slots": [{"start": 0, "stop": 1}], "to": "0"}

    answer = scene.client("viewer").post(path, json=body)

    assert answer.status_code == 403
    assert scene.run.changes == []


def test_changes_need_an_operator() -> None:
    assert [path.rpartition("/")[2] for path in CHANGES] == [
        "scale",
        "rebalance",
        "drain",
        "move",
        "stop",
    ]


def test_a_login_link_works_once_and_gives_a_strict_cookie(scene: Scene) -> None:
    made = scene.client("operator").post("/api/v1/login-links", json={"right": "operator"}).json()
    link = urlsplit(made["url"])
    browser = scene.client()

    first = browser.get(f"{link.path}?{link.query}")
    replayed = scene.client().get(f"{link.path}?{link.query}")

    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert replayed.status_code == 401 and "set-cookie" not in replayed.headers
    assert browser.get("/api/v1/session").json()["right"] == "operator"
    scene.clock.now += SESSION_LIFETIME
    assert browser.get("/api/v1/session").status_code == 401


def test_a_login_link_expires_and_is_not_used_up_by_a_preview(scene: Scene) -> None:
    code = scene.tokens.login_code("viewer").text
    assert scene.client().head(f"/login?code={code}").status_code == 200
    assert scene.client().get(f"/login?code={code}").status_code == 303
    late = scene.tokens.login_code("viewer").text
    scene.clock.now += LINK_LIFETIME

    assert scene.client().get(f"/login?code={late}").status_code == 401
    assert scene.client().get("/login").status_code == 401


def test_a_viewer_makes_links_for_viewers_alone(scene: Scene) -> None:
    viewer = scene.client("viewer")

    assert viewer.post("/api/v1/login-links", json={"right": "operator"}).status_code == 403
    assert viewer.post("/api/v1/login-links", json={}).json()["right"] == "viewer"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:2"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_requests_of_other_sites_are_refused(scene: Scene, headers: dict[str, str]) -> None:
    operator = scene.client("operator")

    looked = operator.get("/api/v1/snapshot", headers=headers)
    changed = operator.post("/api/v1/stop", headers=headers, json={})

    assert looked.status_code == changed.status_code == 403
    assert "access-control-allow-origin" not in looked.headers
    assert scene.run.changes == []


def test_a_change_by_cookie_must_name_its_origin_and_be_json(scene: Scene) -> None:
    code = scene.tokens.login_code("operator").text
    browser = scene.client()
    browser.get(f"/login?code={code}")
    own = {"Origin": "http://127.0.0.1:1"}

    without = browser.post("/api/v1/rebalance", json={})
    form = browser.post("/api/v1/rebalance", headers=own, data={"dry_run": "false"})
    proper = browser.post("/api/v1/rebalance", headers=own, json={})

    assert (without.status_code, form.status_code, proper.status_code) == (403, 415, 200)
    assert scene.run.changes == [("rebalance", None)]


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:1", True),
        ("localhost:9", True),
        ("LOCALHOST", True),
        ("[::1]:1", True),
        ("evil.example:1", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:1", False),
        ("", False),
    ],
)
def test_a_host_that_is_not_ours_is_refused(scene: Scene, host: str, is_ours: bool) -> None:
    answer = scene.client("viewer").get("/api/v1/session", headers={"Host": host})

    assert answer.status_code == (200 if is_ours else 421)


def test_large_requests_are_refused_before_they_are_read(scene: Scene) -> None:
    viewer = scene.client("viewer")
    headers = {"Content-Type": "application/json"}

    told = viewer.post("/api/v1/state/get-many", content=b" " * (MOST_BYTES + 1), headers=headers)
    untold = viewer.post(
        "/api/v1/state/get-many", content=iter([b" " * 2**20] * 5), headers=headers
    )
    odd = viewer.post("/api/v1/state/get-many", headers={"Content-Length": "-1"})

    assert (told.status_code, untold.status_code, odd.status_code) == (413, 413, 400)


def test_requests_are_limited_by_token_and_guesses_by_address(scene: Scene) -> None:
    viewer, other = scene.client("viewer"), scene.client("viewer")

    asked = [viewer.get("/api/v1/session").status_code for _ in range(600)]
    guessed = [scene.client().get("/api/v1/session").status_code for _ in range(40)]

    assert set(asked) == {200, 429}
    assert set(guessed) == {401, 429}
    assert scene.client().get("/login?code=guess").status_code == 429
    assert other.get("/api/v1/session").status_code == 200


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/", "has no login"), ("/assets/main.js", "has no login"), ("/login?code=1", "used before")],
)
def test_a_browser_without_a_login_is_shown_how_to_get_a_link(
    scene: Scene, path: str, reason: str
) -> None:
    answer = scene.client().get(path, headers={"Accept": BROWSER})

    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["vary"] == "Accept"
    assert reason in answer.text and "$" not in answer.text
    assert "millstream dashboard NAME" in answer.text
    assert "<script" not in answer.text and "http-equiv" not in answer.text


def test_the_policy_of_the_login_page_permits_its_own_styles_alone(scene: Scene) -> None:
    answer = scene.client().get("/", headers={"Accept": BROWSER})

    style = answer.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "script-src" not in policy and "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/", "*/*"),
        ("/", ""),
        ("/", "application/json"),
        ("/", "application/json, text/html;q=0.9"),
        ("/", "application/json, text/html"),
        ("/", "text/html;q=0, */*"),
        ("/", "text/html;q=much"),
        ("/login?code=1", "*/*"),
        ("/api/v1/snapshot", BROWSER),
        ("/metrics", BROWSER),
    ],
)
def test_clients_of_the_api_are_refused_in_json(scene: Scene, path: str, accept: str) -> None:
    answer = scene.client().get(path, headers={"Accept": accept})

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 401 and "millstream dashboard" in answer.json()["detail"]


def test_every_answer_has_security_headers(scene: Scene) -> None:
    for answer in (
        scene.client("viewer").get("/api/v1/snapshot"),
        scene.client().get("/api/v1/snapshot"),
        scene.client("viewer").get("/"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
