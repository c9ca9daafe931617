from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from millstream.api.contract import BacklogView
from millstream.api.metrics import exposition, metrics_of
from tests.api.conftest import Scene
from tests.api.stand_in import snapshot

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
LINE = re.compile(r'^millstream_[a-z_]+\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\} [-+0-9.einf]+$')


def test_the_text_is_that_of_prometheus_and_names_the_workflow(scene: Scene) -> None:
    answer = scene.client("viewer").get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    values = [line for line in lines if not line.startswith("#")]
    assert values and all(LINE.match(line) for line in values)
    assert 'millstream_rows_per_second{workflow="wordcount"} 1000.0' in values
    assert 'millstream_nodes{workflow="wordcount",role="active"} 2.0' in values
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.partition("{")[0] for line in values} <= named


def test_labels_are_escaped() -> None:
    now = snapshot()
    odd = replace(now, run=replace(now.run, workflow='a"b\\c\nd'))

    assert 'workflow="a\\"b\\\\c\\nd"' in exposition(odd)
    assert all(LINE.match(line) for line in exposition(odd).splitlines() if line[0] != "#")


def test_a_source_that_does_not_report_its_backlog_has_no_value() -> None:
    files = BacklogView(source="lines", unit="files", amount=0, epochs=0)
    unknown = BacklogView(source="clicks", unit="rows", amount=None)
    text = exposition(replace(snapshot(), backlog=[files, unknown]))

    assert 'millstream_backlog{workflow="wordcount",source="lines",unit="files"} 0.0' in text
    assert 'millstream_backlog_epochs{workflow="wordcount",source="lines"} 0.0' in text
    assert "clicks" not in text


def test_alerts_and_the_dashboard_of_grafana_use_metrics_that_exist() -> None:
    known = {f"millstream_{metric.name}" for metric in metrics_of(snapshot())}
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = re.findall(r"expr: (.*)", (MONITORING / "alerts.yml").read_text())

    assert len(queries) > 10 and len(rules) == 4
    for query in (*queries, *rules):
        used = set(re.findall(r"millstream_[a-z_]+", query))
        assert used and used <= known, query
