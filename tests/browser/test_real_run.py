"""The page on a workflow that runs on real Spark."""

from __future__ import annotations

import os
import signal

import pytest
from pyspark.sql import SparkSession
from selenium.webdriver import Chrome

from millstream.spark.handle import Run
from tests.browser.page import Page
from tests.spark.endless import awaited, owners, running

pytestmark = pytest.mark.spark


def test_the_page_shows_and_changes_a_real_run(spark: SparkSession, chrome: Chrome) -> None:
    with running(spark, nodes=2) as run:
        page = Page(chrome, run.dashboard_link())
        page.wait(lambda: page.ring_nodes() == ids(run), "the nodes of the run")
        assert page.text("#workflow") == "endless"
        before = page.text(".centre")
        page.wait(lambda: page.text(".centre") != before, "values that change")

        dead = run.status().nodes[0]
        os.kill(dead.pid, signal.SIGKILL)
        page.wait(lambda: dead.node not in page.ring_nodes(), "the end of the dead node")
        awaited(run, lambda: owners(run) == 2)
        page.wait(lambda: page.ring_nodes() == ids(run), "its replacement")
        assert "lost" in page.text("#events")

        page.button("Scale").click()
        page.type("#dialog [name=nodes]", "3")
        page.wait(lambda: "from 2 to 3 nodes" in page.text(".preview"), "the preview")
        page.button("Scale to 3 nodes", within="#dialog").click()
        awaited(run, lambda: owners(run) == 3)
        page.wait(lambda: page.ring_nodes() == ids(run), "the third node")

        page.wait(lambda: page.count("#state option") == 1, "the jobs")
        page.type("#state [name=key]", "3")
        page.button("Look up").click()
        page.wait(lambda: '"n":' in page.text("#state tbody"), "the state of a key")
        assert page.violations() == []
        assert page.errors() == []
        chrome.get("about:blank")


def ids(run: Run) -> set[str]:
    return {node.node for node in run.status().nodes if node.slots or node.copies}
