from __future__ import annotations

import pytest

from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import StoreUnavailableError


def test_an_unavailable_store_is_retried() -> None:
    tries = iter([UnavailableError("1"), UnavailableError("2"), None])

    def act() -> str:
        if (problem := next(tries)) is not None:
            raise problem
        return "done"

    assert wait_for("the store", 30, act) == "done"


def test_patience_ends_with_the_reason_and_what_to_do() -> None:
    tries = []

    def act() -> None:
        tries.append(1)
        raise UnavailableError("nobody there") from ConnectionRefusedError("refused")

    with pytest.raises(
        StoreUnavailableError,
        match=r"the store did not answer for 0\.05 s \(nobody there\).*patience=",
    ) as raised:
        wait_for("the store", 0.05, act)
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)
    assert len(tries) > 1


def test_without_patience_there_is_one_try() -> None:
    tries = []

    def act() -> None:
        tries.append(1)
        raise UnavailableError("nobody there")

    with pytest.raises(StoreUnavailableError):
        wait_for("the store", 0, act)
    assert len(tries) == 1


def test_other_errors_are_not_waited_for() -> None:
    def act() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        wait_for("the store", 30, act)
