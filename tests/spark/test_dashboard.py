"""The HTTP API of a workflow that runs on real Spark."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.wire.run_registry import ApiAccess, RunRegistry
from tests.spark.endless import awaited, running

pytestmark = pytest.mark.spark


def ask(access: ApiAccess, token: str, method: str, path: str, body: Any = None) -> Any:
    address = urlsplit(access.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    shown = json.loads(answer.read())
    assert answer.status == 200, shown
    return shown


def access_of(workflow: str) -> ApiAccess:
    [run] = [run for run in RunRegistry.of_user().runs() if run.workflow == workflow]
    assert run.api is not None
    return run.api


def listening_ports() -> Iterator[tuple[str, int]]:
    """The TCP sockets of this process on which it listens: address and port."""
    own = {
        Path(f"/proc/self/fd/{fd.name}").resolve().name
        for fd in Path("/proc/self/fd").iterdir()
        if fd.exists() or fd.is_symlink()
    }
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                yield address, int(port, 16)


def jobs_in_ui(spark: SparkSession) -> set[tuple[str, str]]:
    """Group and description of the jobs that Spark's UI lists."""
    jobs = spark._jsc.sc().statusStore().jobsList(None)
    listed = [jobs.apply(at) for at in range(jobs.size())]
    return {
        (job.jobGroup().get(), job.description().get())
        for job in listed
        if job.jobGroup().isDefined() and job.description().isDefined()
    }


def test_a_run_is_looked_at_read_and_changed_over_http(spark: SparkSession) -> None:
    earlier = jobs_in_ui(spark)
    with running(spark, nodes=2) as run:
        access = access_of("endless")
        now = ask(access, access.viewer, "GET", "/api/v1/snapshot")
        assert now["run"]["phase"] == "running" and now["run"]["active"] == 2
        assert [vertex["kind"] for vertex in now["graph"]["vertices"]] == ["source", "job", "sink"]
        assert {node["id"] for node in now["nodes"]} == {n.node for n in run.status().nodes}
        assert sum(arc["stop"] - arc["start"] for arc in now["ring"]["arcs"]) == 64
        awaited(run, lambda: run.status().committed >= 3)
        now = ask(access, access.viewer, "GET", "/api/v1/snapshot")
        assert {"admit", "run", "commit", "seal"} <= {
            phase["name"] for phase in now["epochs"][-1]["phases"]
        }
        assert now["throughput"]["rows_per_second"] > 0

        listed = jobs_in_ui(spark) - earlier
        epochs = {(group, text) for group, text in listed if text.startswith("endless: epoch ")}
        assert len(epochs) >= 3 and len({group for group, _ in epochs}) == 1

        path = "/api/v1/state/get?job=count&key=3"
        found = ask(access, access.viewer, "GET", path)
        assert found["epoch"] >= 0 and found["items"][0]["value"]["n"] > 0
        body = {"job": "count", "keys": [str(key) for key in range(21)]}
        many = ask(access, access.viewer, "POST", "/api/v1/state/get-many", body)
        assert [item["found"] for item in many["items"]] == [True] * 20 + [False]
        scanned, page = (
            [],
            ask(access, access.viewer, "GET", "/api/v1/state/scan?job=count&limit=8"),
        )
        epoch = page["epoch"]
        while True:
            scanned += page["items"]
            assert page["epoch"] == epoch
            if page["continuation"] is None:
                break
            path = f"/api/v1/state/scan?job=count&limit=8&continuation={page['continuation']}"
            page = ask(access, access.viewer, "GET", path)
        assert sorted(item["key"] for item in scanned) == list(range(20))
        ranged = ask(access, access.viewer, "GET", "/api/v1/state/scan?job=count&start=5&stop=7")
        assert sorted(item["key"] for item in ranged["items"]) == [5, 6]
        top = ask(access, access.viewer, "GET", "/api/v1/state/top?job=count&n=3&by=n")
        assert len(top["items"]) == 3

        state = run.state("count")
        read = state.get_many([1, 2, 99])
        assert set(read) == {1, 2} and read.epoch <= run.status().committed
        assert sorted(key for key, _ in state.scan(start=5, stop=7)) == [5, 6]
        (_, largest), *_ = state.top(3, by="n")  # of the same epoch, or of a later one
        assert largest["n"] >= read[1]["n"] and len(state.top(2, by=lambda v: -v["n"])) == 2
        table = state.to_arrow()
        assert table.column_names == ["key", "n"] and table.num_rows == 20
        assert int(table.schema.metadata[b"millstream.epoch"]) >= read.epoch
        assert state.to_dataframe().where("key >= 18").count() == 2

        plan = ask(access, access.operator, "POST", "/api/v1/scale", {"nodes": 1, "dry_run": True})
        assert plan["preview"]["nodes_after"] == 1 and plan["preview"]["slots"] == 32
        assert run.status().target == 2
        done = ask(access, access.operator, "POST", "/api/v1/scale", {"nodes": 1})
        assert done["run"]["target"] == run.status().target == 1
        kinds = [e["kind"] for e in ask(access, access.viewer, "GET", "/api/v1/events")["events"]]
        assert "scale" in kinds

        ask(access, access.operator, "POST", "/api/v1/stop", {})
        assert run.await_termination()
    with pytest.raises(OSError):
        address = urlsplit(access.url)
        socket.create_connection((address.hostname, address.port), timeout=5)


def test_only_loopback_listens_and_nothing_without_a_dashboard(spark: SparkSession) -> None:
    before = set(listening_ports())
    with running(spark, nodes=1) as run:
        opened = set(listening_ports()) - before
        assert [address for address, _ in opened] == ["0100007F"]  # 127.0.0.1, little-endian
        assert run.dashboard_link().startswith("http://127.0.0.1:")
    with running(spark, nodes=1, dashboard=False) as run:
        assert set(listening_ports()) - before == set()
        with pytest.raises(ms.ConfigError, match="no dashboard"):
            run.dashboard_link()
