"""The page in a real browser, as tests see it."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 60.0  # for what takes a second
_FLAGS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def find_browser() -> tuple[str, str] | None:
    """The browser of the system and its driver."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


@contextmanager
def browsing(browser: str, driver: str) -> Iterator[Chrome]:
    """A browser without a window."""
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*_FLAGS, *(("--no-sandbox",) if os.geteuid() == 0 else ())):
        options.add_argument(flag)
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


class Page:
    """The dashboard, opened by a link that logs in."""

    def __init__(self, chrome: Chrome, link: str) -> None:
        self.chrome = chrome
        self.resize(1440, 900)
        self.emulate()
        self.errors()  # those of the page before
        chrome.get("about:blank")
        chrome.get(link)

    def resize(self, width: int, height: int) -> None:
        """Set the size of what the page sees as its window."""
        self.chrome.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def emulate(self, *, scheme: str = "light", motion: str = "reduce") -> None:
        """Set what the reader prefers."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until something is the case."""
        WebDriverWait(self.chrome, PATIENCE, poll_frequency=0.1).until(
            lambda _: condition(), message=f"waited for {what}; the page says {self.errors()}"
        )

    def await_nodes(self, count: int) -> None:
        """Wait until so many nodes are on the ring."""
        self.wait(lambda: len(self.ring_nodes()) == count, f"{count} nodes on the ring")

    def ring_nodes(self) -> set[str]:
        """The ids of the nodes that are drawn on the ring."""
        return set(
            self.script(
                "return [...document.querySelectorAll('.ring .node')].map(n => n.dataset.node)"
            )
        )

    def text(self, selector: str) -> str:
        """The text of an element, also of one that is not in view."""
        found = self.script("return document.querySelector(arguments[0])?.textContent", selector)
        return str(found or "")

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return int(self.script("return document.querySelectorAll(arguments[0]).length", selector))

    def find(self, selector: str) -> WebElement:
        """An element."""
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def button(self, name: str, *, within: str = "body") -> WebElement:
        """A button by its text."""
        path = f".//button[normalize-space()='{name}']"
        return self.find(within).find_element(By.XPATH, path)

    def type(self, selector: str, text: str) -> None:
        """Replace what is in a field."""
        field = self.find(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def script(self, text: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.chrome.execute_script(text, *arguments)

    def errors(self) -> list[str]:
        """What the browser's console complains about since the last call."""
        found = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def violations(self) -> list[str]:
        """Serious violations of accessibility rules that axe-core finds."""
        axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.script(axe)
        found = self.chrome.execute_async_script(
            "axe.run().then(arguments[0], problem => arguments[0]({error: problem.message}))"
        )
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def save(self, path: Path, width: int, height: int, scale: float) -> None:
        """Write the top of the page as a PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        shot = self.chrome.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "clip": clip}
        )
        path.write_bytes(base64.b64decode(shot["data"]))
