"""The dashboard of Grafana and the alerts, in a real Prometheus that scrapes a real run.

The tests share the run, and are in the order of their faults: the last one loses a node.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.monitoring.monitored_run import WORKFLOW, MonitoredRun
from tests.monitoring.prometheus_server import Prometheus
from tests.spark.conftest import spark
from tests.stores.redis_servers import RedisServer

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
PATIENCE = 120.0  # for what takes seconds
OLD = 8.0  # seconds: a checkpoint that is too old


class Scene:
    """A run that is monitored; ``budget`` is what an epoch may take."""

    def __init__(self, run: MonitoredRun, folder: Path) -> None:
        self.run = run
        self.budget = 1.0 + 1.5 * max(report.seconds for report in run.run.progress.recent)
        self.prometheus = Prometheus(folder, run.access, shortened(self.budget))

    def awaited(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {self.prometheus.firing()}"
            assert self.run.run.phase() == "running"
            time.sleep(0.25)

    def fires(self, alert: str) -> bool:
        found = self.prometheus.firing().get(alert, {})
        assert found.get("workflow", WORKFLOW) == WORKFLOW
        return bool(found)


def shortened(budget: float) -> str:
    """The rules as they are, but with limits that a test can wait for."""
    rules = (MONITORING / "alerts.yml").read_text()
    for limit, short in (
        ("_timestamp_seconds > 60 and", f"_timestamp_seconds > {OLD} and"),
        ('{quantile="0.95"} > 5\n', f'{{quantile="0.95"}} > {budget}\n'),
        ("deriv(millstream_backlog[5m])", "deriv(millstream_backlog[10s])"),
    ):
        assert rules.count(limit) == 1
        rules = rules.replace(limit, short)
    return re.sub(r"for: \d+m\n", "for: 1s\n", rules)


@pytest.fixture(scope="module")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("monitored")
    store = RedisServer(folder / "redis")
    store.start()
    run = MonitoredRun(folder, store)
    try:
        with run.running(spark):
            scene = Scene(run, folder)
            try:
                scene.prometheus.start()
                yield scene
            finally:
                scene.prometheus.kill()
    finally:
        store.kill()


def test_prometheus_scrapes_a_run_with_the_token_of_a_viewer(scene: Scene) -> None:
    up = f'millstream_up{{workflow="{WORKFLOW}"}} == 1'
    scene.awaited(lambda: bool(scene.prometheus.series(up)), "scrape")

    assert scene.prometheus.series('up{job="millstream"} == 1')


def test_every_query_of_the_dashboard_for_grafana_finds_data(scene: Scene) -> None:
    prometheus = scene.prometheus
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    variables = {each["name"]: each["query"] for each in dashboard["templating"]["list"]}
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["workflow"])
    assert found is not None
    metric, label = found.groups()
    scene.awaited(lambda: prometheus.label_values(label, metric) == [WORKFLOW], "workflow")
    queries = {
        target["expr"].replace("$workflow", WORKFLOW): re.findall(
            r"\{\{(\w+)\}\}", target["legendFormat"]
        )
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }

    scene.run.add_files(3)
    for query, labels in queries.items():
        scene.awaited(partial(prometheus.has_data, query), query)
        for series in prometheus.series(query):
            assert set(labels) <= set(series), query
    sources = prometheus.series(f'millstream_backlog{{workflow="{WORKFLOW}"}}')
    assert {(each["source"], each["unit"]) for each in sources} == {
        ("lines", "files"),
        ("rate", "rows"),
    }


def test_no_alert_fires_while_nothing_is_wrong(scene: Scene) -> None:
    scene.awaited(lambda: set(scene.prometheus.rules().values()) == {"ok"}, "evaluated rules")
    scene.awaited(lambda: not scene.prometheus.firing(), "silence")

    assert set(scene.prometheus.rules()) == {
        "MillstreamOutOfSync",
        "MillstreamCheckpointTooOld",
        "MillstreamEpochOverBudget",
        "MillstreamFallingBehind",
    }


def test_an_alert_fires_while_input_arrives_faster_than_it_is_read(scene: Scene) -> None:
    def is_late() -> bool:
        scene.run.add_files(10)
        return scene.fires("MillstreamFallingBehind")

    scene.awaited(is_late, "alert")


def test_an_alert_fires_while_the_store_does_not_answer(scene: Scene) -> None:
    assert not scene.fires("MillstreamCheckpointTooOld")
    with scene.run.suspended_store():
        scene.awaited(lambda: scene.fires("MillstreamCheckpointTooOld"), "alert")
    scene.awaited(lambda: not scene.fires("MillstreamCheckpointTooOld"), "end of the alert")


def test_an_alert_fires_when_epochs_take_longer_than_their_budget(scene: Scene) -> None:
    assert not scene.fires("MillstreamEpochOverBudget")
    scene.run.slowness = scene.budget + 0.5
    scene.awaited(lambda: scene.fires("MillstreamEpochOverBudget"), "alert")
    scene.run.slowness = 0.0


def test_an_alert_fires_while_slots_have_too_few_copies(scene: Scene) -> None:
    assert not scene.fires("MillstreamOutOfSync")
    scene.run.lose_node()
    scene.awaited(lambda: scene.fires("MillstreamOutOfSync"), "alert")
