"""Pictures of the page for the docs: ``python -m tests.browser.screenshots docs/images``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.browser.page import Page, browsing, find_browser
from tests.browser.serve import past, serving
from tests.browser.simulated_run import SimulatedRun

_PICTURES = (
    ("dashboard-light", 1440, 900, "light", 9),
    ("dashboard-dark", 1440, 900, "dark", 200),
    ("dashboard-phone", 390, 844, "light", 9),
)
_MOVING = 49  # epochs after which slots are on their way


def main(folder: Path) -> None:
    """Write the pictures."""
    found = find_browser()
    if found is None:
        raise SystemExit("there is no Chromium with its driver: run tools/setup browser")
    folder.mkdir(parents=True, exist_ok=True)
    with browsing(*found) as chrome:
        for name, width, height, scheme, nodes in _PICTURES:
            run = SimulatedRun(nodes, zones=3, time=time.time() - 600)
            past(run, 9 * 60 + _MOVING)
            with serving(run, right="operator") as link:
                page = Page(chrome, link)
                page.resize(width, height)
                page.emulate(scheme=scheme, motion="reduce")
                page.await_nodes(len({arc.owner for arc in run.snapshot().ring.arcs}))
                page.wait(lambda page=page: page.count(".chart .line[d]") > 0, "the charts")
                page.save(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
