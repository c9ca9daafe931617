"""Functions of the page that only compute, called in the browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Open
from tests.browser.page import Page
from tests.browser.simulated_run import SimulatedRun


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page(SimulatedRun(3))


def call(page: Page, module: str, function: str, *arguments: Any) -> Any:
    return page.chrome.execute_async_script(
        "const [module, name, given, done] = arguments;"
        "import(`/assets/${module}.js`).then(found => done(found[name](...given)))",
        module,
        function,
        list(arguments),
    )


def test_handovers_are_the_slots_with_another_owner(page: Page) -> None:
    before = [arc(0, 40, "a"), arc(40, 64, "b")]
    after = [arc(0, 10, "a"), arc(10, 50, "c"), arc(50, 64, "b")]

    assert call(page, "geometry", "handovers", before, after) == [
        {"start": 10, "stop": 40, "source": "a", "to": "c"},
        {"start": 40, "stop": 50, "source": "b", "to": "c"},
    ]


def test_thinning_a_series_retains_its_peak(page: Page) -> None:
    times = list(range(1000))
    values = [1.0] * 1000
    values[437] = 9.0
    history = {"times": times, "series": {"rows": values}}

    points = call(page, "series", "points", history, "rows", 0, 1000, 50)

    assert len(points) <= 51 and max(value for _, value in points) == 9.0


def test_a_layer_of_the_graph_is_below_everything_that_it_reads(page: Page) -> None:
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)]
    graph = {
        "vertices": [{"id": at} for at in range(4)],
        "edges": [{"source": source, "target": target} for source, target in edges],
    }

    layout = page.chrome.execute_async_script(
        "import('/assets/graph_layout.js').then(({layout}) =>"
        " arguments[1]([...layout(arguments[0]).places.values()].map(place => place.layer)))",
        graph,
    )

    assert layout == [0, 1, 2, 3]


def test_a_join_after_a_loss_is_a_recovery(page: Page) -> None:
    kinds = ["join", "lost", "scale", "join", "join"]

    found = call(page, "event_kinds", "inLanes", [{"kind": kind} for kind in kinds])

    assert [event["lane"] for event in found] == [
        "scale",
        "failure",
        "scale",
        "recovery",
        "scale",
    ]


def arc(start: int, stop: int, owner: str) -> dict[str, Any]:
    return {"start": start, "stop": stop, "owner": owner}
