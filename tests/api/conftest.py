from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from millstream.api.app import application
from millstream.api.contract import Right
from millstream.api.tokens import TokenBook
from tests.api.stand_in import StandInRun


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


class Scene:
    """A served run, and clients with tokens for it."""

    def __init__(self) -> None:
        self.run = StandInRun()
        self.clock = Clock()
        self.tokens = TokenBook(self.clock)
        self.app = application(
            self.run, self.tokens, cookie="millstream_1", version="1.2.3", clock=self.clock
        )

    def client(self, right: Right | None = None) -> TestClient:
        headers = {}
        if right is not None:
            headers["Authorization"] = f"Bearer {self.tokens.issue(right).text}"
        return TestClient(
            self.app,
            base_url="http://127.0.0.1:1",
            headers=headers,
            follow_redirects=False,
            raise_server_exceptions=False,
        )


@pytest.fixture
def scene() -> Iterator[Scene]:
    yield Scene()
