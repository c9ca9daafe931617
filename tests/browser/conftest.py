"""A real browser, and the page on a simulated run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest
from selenium.webdriver import Chrome

from millstream.api.contract import Right
from tests.browser.page import Page, browsing, find_browser
from tests.browser.serve import serving
from tests.browser.simulated_run import SimulatedRun
from tests.spark.conftest import spark

__all__ = ["spark"]


class Open(Protocol):
    """Opens the page of a run, and waits until its nodes are drawn."""

    def __call__(self, run: SimulatedRun, *, right: Right = "operator") -> Page: ...


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    found = find_browser()
    if found is None:
        if os.environ.get("MILLSTREAM_SERVERS") == "required":
            pytest.fail("there is no Chromium with its driver: run tools/setup browser")
        pytest.skip("there is no Chromium with its driver: run tools/setup browser")
    with browsing(*found) as chrome:
        yield chrome


@pytest.fixture
def open_page(chrome: Chrome) -> Iterator[Open]:
    """Opens the page of a simulated run; in the end its console must have no errors."""
    with ExitStack() as servers:
        pages: list[Page] = []

        def opened(run: SimulatedRun, *, right: Right = "operator") -> Page:
            link = servers.enter_context(serving(run, right=right))
            pages.append(Page(chrome, link))
            pages[-1].await_nodes(len(run.snapshot().nodes))
            return pages[-1]

        yield opened
        for page in pages:
            assert page.errors() == []
        chrome.get("about:blank")
