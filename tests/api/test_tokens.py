from __future__ import annotations

import threading

import pytest

from millstream.api import run_api
from millstream.api.rate_limit import RateLimit
from millstream.api.run_api import RunApi
from millstream.api.tokens import TOKEN_LIFETIME, TokenBook
from millstream.wire.run_registry import ApiAccess
from tests.api.conftest import Clock
from tests.api.stand_in import StandInRun


def test_a_token_allows_what_it_was_issued_for_until_it_expires() -> None:
    clock = Clock()
    book = TokenBook(clock)
    viewer, operator = book.issue("viewer"), book.issue("operator")

    found = book.check(viewer.text), book.check(operator.text)

    assert [grant and grant.allows("viewer") for grant in found] == [True, True]
    assert [grant and grant.allows("operator") for grant in found] == [False, True]
    assert book.check("") is None and book.check(viewer.text + "x") is None
    clock.now += TOKEN_LIFETIME
    assert book.check(viewer.text) is None


def test_tokens_are_not_held_as_text_and_are_bounded_in_number() -> None:
    book = TokenBook(Clock())
    first = book.issue("viewer")
    assert first.text not in repr(vars(book))

    later = [book.issue("viewer") for _ in range(300)]

    assert book.check(first.text) is None
    assert book.check(later[-1].text) is not None


def test_a_login_code_is_no_token_and_a_token_no_login_code() -> None:
    book = TokenBook(Clock())
    code, token = book.login_code("operator"), book.issue("operator")

    assert book.check(code.text) is None and book.redeem(token.text) is None
    session = book.redeem(code.text)
    assert session is not None and session.right == "operator"
    assert book.redeem(code.text) is None


def test_a_rate_limit_is_refilled_and_by_caller() -> None:
    clock = Clock()
    limit = RateLimit(2.0, 3.0, clock, callers=2)

    assert [limit.admit("a") for _ in range(4)] == [True, True, True, False]
    assert limit.admit("b")
    clock.now += 0.5
    assert [limit.admit("a"), limit.admit("a")] == [True, False]


def test_tokens_are_renewed_before_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_api, "TOKEN_LIFETIME", 0.02)
    renewed, twice = list[ApiAccess](), threading.Event()

    def renew(access: ApiAccess) -> None:
        renewed.append(access)
        if len(renewed) == 2:
            twice.set()

    api = RunApi(StandInRun(), ("127.0.0.1", 0), version="1")
    first = api.access()
    api.start(renew)
    try:
        assert twice.wait(30.0)
    finally:
        api.close()

    assert len({first.viewer, *(access.viewer for access in renewed[:2])}) == 3
    assert {access.url for access in renewed} == {first.url}
