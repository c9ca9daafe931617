"""Pictures of the page for the docs: ``python -m tests.browser.screenshots docs/images``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from selenium.webdriver import Chrome

from tests.browser.page import Page, browsing, find_browser
from tests.browser.serve import past, serving
from tests.browser.simulated_run import SimulatedRun

_PICTURES = (
    ("dashboard-light", 1440, 900, "light", 9, 0.8),
    ("dashboard-dark", 1440, 900, "dark", 200, 0.65),
    ("dashboard-phone", 390, 844, "light", 9, 1.0),
)
_EPOCHS = 9 * 60 + 50  # then slots are on their way


def main(folder: Path) -> None:
    """Write the pictures."""
    found = find_browser()
    if found is None:
        raise SystemExit("there is no Chromium with its driver: run tools/setup browser")
    folder.mkdir(parents=True, exist_ok=True)
    with browsing(*found) as chrome:
        for name, width, height, scheme, nodes, scale in _PICTURES:
            run = SimulatedRun(nodes, zones=3, time=time.time() - _EPOCHS)
            past(run, _EPOCHS)
            with serving(run, right="operator") as link:
                page = _page(chrome, link, run)
                page.resize(width, height)
                page.emulate(scheme=scheme)
                page.save(folder / f"{name}.png", width, height, scale)
                chrome.get("about:blank")


def _page(chrome: Chrome, link: str, run: SimulatedRun) -> Page:
    page = Page(chrome, link)
    page.await_nodes(len({arc.owner for arc in run.snapshot().ring.arcs}))
    page.wait(lambda: "/s" in page.text(".chart output"), "the charts")
    page.wait(lambda: page.count(".lane button") > 0, "the timeline")
    return page


if __name__ == "__main__":
    main(Path(sys.argv[1]))
