"""The page on a simulated run."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Open
from tests.browser.page import Page
from tests.browser.serve import serving
from tests.browser.simulated_run import SimulatedRun

_COUNT_MUTATIONS = """
window.touched = 0;
window.touchedAt = performance.now();
new MutationObserver(found => {
    window.touched += found.length;
    window.touchedAt = performance.now();
}).observe(document.querySelector("main"),
    {subtree: true, childList: true, attributes: true, characterData: true});
"""


@pytest.fixture
def run() -> SimulatedRun:
    run = SimulatedRun(6, zones=3)
    for _ in range(5):
        run.step()
    return run


def test_values_change_as_epochs_commit(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    page.wait(lambda: "epoch 4" in page.text(".centre"), "the newest epoch")
    before = page.text("#charts")
    for _ in range(3):
        run.step()
    page.wait(lambda: "epoch 7" in page.text(".centre"), "the next epochs")
    page.wait(lambda: page.text("#charts") != before, "other figures")
    page.wait(lambda: "/s" in page.text("#jobs"), "rates of jobs")


def test_the_graph_shows_what_waits_at_a_source(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    page.wait(lambda: "rows waiting" in page.text("#graph"), "the backlog of the source")


def test_an_update_touches_only_what_changed(open_page: Open) -> None:
    run = SimulatedRun(200)
    run.step()
    page = open_page(run)
    page.wait(lambda: page.count("#nodes tbody tr") == 200, "200 rows")
    node = run.snapshot().nodes[17].id
    run.set_cpu(node, 0.11)
    shown = f"#nodes tr[data-node='{node}'] td.bar"
    page.wait(lambda: page.text(shown) == "11 %", "the figure that changed")
    page.script(_COUNT_MUTATIONS)
    quiet = "return performance.now() - window.touchedAt > 2000"
    page.wait(lambda: page.script(quiet), "the end of drawing")
    page.script("window.touched = 0")

    run.set_cpu(node, 0.77)
    page.wait(lambda: page.text(shown) == "77 %", "the figure that changed")

    # The figure and its bar in the table, and the spoke on the ring.
    assert page.script("return window.touched") == 3


def test_a_change_says_what_will_happen_and_moves_are_drawn(
    run: SimulatedRun, open_page: Open
) -> None:
    page = open_page(run)
    before = page.ring_nodes()
    page.button("Scale").click()
    page.type("#dialog [name=nodes]", "8")
    page.wait(lambda: "from 6 to 8 nodes" in page.text(".preview"), "the preview")
    assert len(run.snapshot().nodes) == 6
    page.button("Scale to 8 nodes", within="#dialog").click()
    page.wait(lambda: page.count(".chords path") > 0, "moves on the ring")
    for _ in range(8):
        run.step()
    page.await_nodes(8)
    page.wait(lambda: page.count(".chords path") == 0, "the end of the moves")
    assert before < page.ring_nodes()


def test_slots_that_change_owner_fly_to_it(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    page.emulate(motion="no-preference")
    page.script(
        "window.flown = 0; new MutationObserver(found => found.forEach(each => {"
        " window.flown += each.addedNodes.length; }))"
        ".observe(document.querySelector('.flights'), {childList: true})"
    )
    run.scale(8, dry_run=False)
    for _ in range(8):
        run.step()
    page.wait(lambda: page.script("return window.flown") > 0, "slots on their way")
    page.wait(lambda: page.count(".flights *") == 0, "their arrival")


def test_a_dead_node_disappears_and_its_replacement_appears(
    run: SimulatedRun, open_page: Open
) -> None:
    page = open_page(run)
    dead = run.snapshot().nodes[2].id
    run.fail(dead)
    page.await_nodes(5)
    assert dead not in page.ring_nodes()
    assert page.count(".scars g") == 1
    assert "was declared dead" in page.text("#events li")
    run.replace_lost()
    for _ in range(8):
        run.step()
    page.await_nodes(6)
    assert dead not in page.ring_nodes()


def test_a_decision_explains_its_inputs_prediction_and_outcome(
    run: SimulatedRun, open_page: Open
) -> None:
    page = open_page(run)
    run.decide()
    page.wait(lambda: page.count("#events .decision details") == 1, "the decision")
    page.find("#events .decision summary").click()
    assert "The outcome shows after a few epochs." in page.text("#events .decision details")
    run.report_outcome()
    page.wait(lambda: "1.08" in page.text("#events .decision table"), "the outcome")
    row = page.text("#events .decision tbody tr:nth-child(2)")
    assert row == "imbalance1.321.051.08-0.03"


def test_state_is_looked_up_scanned_and_ranked(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    page.wait(lambda: page.count("#state option") == 1, "the jobs")
    page.type("#state [name=key]", "mill")
    page.button("Look up").click()
    page.wait(lambda: '{"n":6004}' in page.text("#state tbody"), "the state of a key")
    assert "as committed in epoch 4" in page.text("#state .note")
    page.find("#state [value=top]").click()
    page.type("#state [name=n]", "3")
    page.button("Look up").click()
    page.wait(lambda: page.count("#state tbody tr") == 3, "the largest three")
    page.find("#state [value=scan]").click()
    page.type("#state [name=prefix]", "s")
    page.button("Look up").click()
    page.wait(lambda: page.text("#state tbody tr:last-child th") == "sluice", "keys by prefix")


def test_arrow_keys_walk_around_the_ring(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    ring = page.find(".ring")
    seen = {page.text(".centre strong")}
    for _ in range(6):
        ring.send_keys(Keys.ARROW_RIGHT)
        page.wait(lambda: page.text(".centre strong") not in seen, "the next node")
        seen.add(page.text(".centre strong"))
    assert {node.id[:8] for node in run.snapshot().nodes} <= seen
    assert page.count("#nodes tr.chosen") == 1
    ring.send_keys(Keys.ESCAPE)
    page.wait(lambda: "rows a second" in page.text(".centre"), "the run as a whole")


def test_a_viewer_cannot_change_the_run(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run, right="viewer")
    page.wait(lambda: page.count("#actions button:disabled") == 4, "buttons that are off")


def test_a_wrong_or_used_link_is_refused(run: SimulatedRun, chrome: Chrome) -> None:
    with serving(run, right="operator") as link:
        server, _, _ = link.rpartition("/login")
        page = Page(chrome, f"{server}/login?code=wrong")
        assert "used before or has expired" in page.text("main")
        assert page.ring_nodes() == set()
        Page(chrome, link).await_nodes(6)
        chrome.delete_all_cookies()
        assert "used before" in Page(chrome, link).text("body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_without_a_login_the_page_says_how_to_get_a_link(
    run: SimulatedRun, chrome: Chrome, scheme: str, width: int
) -> None:
    with serving(run, right="viewer") as link:
        chrome.delete_all_cookies()
        page = Page(chrome, link.rpartition("/login")[0])
        page.resize(width, 740)
        page.emulate(scheme=scheme)
        page.wait(lambda: page.script("return innerWidth") == width, "the size")

        assert page.text("h1") == "Open the dashboard with a login link"
        assert "millstream dashboard NAME" in page.text("ol")
        assert page.script("return document.documentElement.scrollWidth") == width
        # Its styles are applied, which their hash in the policy permits.
        paper = page.script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(250, 249, 245)" if scheme == "light" else "rgb(16, 23, 26)")
        assert page.violations() == []
        assert page.script("return performance.getEntriesByType('resource').length") == 0
        assert all("401" in error for error in page.errors())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_violation(run: SimulatedRun, open_page: Open, scheme: str) -> None:
    run.decide()
    run.report_outcome()
    for _ in range(8):
        run.step()
    page = open_page(run)
    page.emulate(scheme=scheme)
    page.wait(lambda: page.count("#events .decision details") == 1, "the decision")
    page.find("#events .decision summary").click()
    page.find("#charts-table summary").click()
    page.wait(lambda: page.count("#charts-table td") > 0, "figures as a table")
    assert page.violations() == []
    page.button("Drain").click()
    page.wait(lambda: "Drain from" in page.text(".preview"), "the preview")
    assert page.violations() == []


def test_the_colour_scheme_is_chosen_and_remembered(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    shown = "return getComputedStyle(document.documentElement).backgroundColor"
    light = page.script(shown)
    for _ in range(2):  # from that of the system to light, and to dark
        page.find("#theme").click()
    dark = page.script(shown)
    assert dark != light
    page.chrome.refresh()
    page.await_nodes(6)
    assert page.script(shown) == dark


def test_a_phone_shows_everything_without_scrolling_sideways(
    run: SimulatedRun, open_page: Open
) -> None:
    page = open_page(run)
    page.resize(360, 740)
    page.wait(lambda: page.script("return innerWidth") == 360, "the size of a phone")
    assert page.script("return document.documentElement.scrollWidth") == 360


def test_nothing_is_loaded_from_elsewhere(run: SimulatedRun, open_page: Open) -> None:
    page = open_page(run)
    origins = page.script(
        "return performance.getEntriesByType('resource').map(each => new URL(each.name).origin)"
    )
    assert set(origins) == {page.script("return location.origin")}
