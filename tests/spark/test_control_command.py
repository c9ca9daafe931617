"""The command ``millstream`` against a workflow that runs on real Spark."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.cli import main
from millstream.spark.handle import Run
from millstream.wire.run_registry import RunRegistry

pytestmark = pytest.mark.spark

COMMAND = Path(sys.executable).with_name("millstream")
SLOTS = 64


def count(key: int, values: list[int], state: Any) -> Iterator[tuple[int, int]]:
    state["n"] = state.get("n", 0) + len(values)
    yield key, state["n"]


def endless() -> ms.Workflow:
    flow = ms.Workflow("endless")
    rows = flow.source("rows", ms.read.rate(rows_per_second=100))
    counts = rows.map_reduce("count", map=lambda row: [(row.value % 10, 1)], reduce=count)
    counts.sink("out", ms.write.callback(lambda rows, epoch: None))
    return flow


def millstream(*arguments: str, status: int = 0) -> Any:
    """Run the command as users do, and give the JSON that it prints."""
    done = subprocess.run(
        [COMMAND, *arguments, "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr


def printed(*arguments: str) -> str:
    """What the command prints for people."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(arguments) == 0
    return out.getvalue()


def await_epoch(run: Run, epoch: int) -> None:
    deadline = time.monotonic() + 120
    while run.status().committed < epoch:
        assert time.monotonic() < deadline and run.status().phase == "running"
        time.sleep(0.05)


def test_a_running_workflow_is_found_described_and_changed_by_commands(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options: dict[str, Any] = {"slots": SLOTS, "checkpoint": checkpoint, "progress": False}
    with ms.start(endless(), spark=spark, nodes=2, **options) as run:
        await_epoch(run, 0)

        [listed] = millstream("ps")
        assert (listed["name"], listed["pid"], listed["target"]) == ("endless", os.getpid(), 2)

        before = millstream("status", "endless")
        first, second = before["nodes"]
        assert first["slots"] == second["slots"] == SLOTS // 2
        assert {node["pid"] for node in before["nodes"]} == {n.pid for n in run.status().nodes}

        owned = ",".join(
            f"{arc['start']}-{arc['stop'] - 1}"
            for arc in before["ring"]["arcs"]
            if arc["owner"] == first["id"]
        )
        planned = millstream("move", "endless", owned, second["id"][:8], "--dry-run")
        assert planned["preview"]["slots"] == SLOTS // 2
        moved = millstream("move", "endless", owned, second["id"][:8], "--wait", "60")
        assert moved["run"]["is_settled"]
        assert {arc["owner"] for arc in moved["ring"]["arcs"]} == {second["id"]}
        await_epoch(run, moved["run"]["committed"] + 2)
        assert [node.slots for node in run.status().nodes] == [0, SLOTS]

        events = millstream("events", "endless")
        assert [event["facts"]["moved"] for event in events if event["kind"] == "move"] == [32]
        assert time.time() - 120 < events[-1]["time"] < time.time()

        assert "no node 'nobody'" in millstream("drain", "endless", "nobody", status=1)
        assert f"from 1 to {SLOTS}" in millstream("scale", "endless", "65", status=1)
        level = millstream("rebalance", "endless", "--wait", "60")
        assert level["run"]["is_settled"]
        assert all(node["slots"] > 0 for node in level["nodes"])  # how many depends on the load

        assert printed("scale", "endless", "3", "--dry-run").startswith("Scale from 2 to 3")
        grown = millstream("scale", "endless", "3", "--wait", "100")
        assert grown["run"]["active"] == 3
        assert printed("drain", "endless", first["id"], "--wait", "100").startswith("done: 2 of 2")
        left = millstream("status", "endless")
        assert first["id"] not in {node["id"] for node in left["nodes"]}

        [job] = millstream("state", "jobs", "endless")
        assert (job["job"], job["key_type"]) == ("count", "int")
        found = millstream("state", "get", "endless", "count", "3", "4")
        assert all(item["value"]["n"] > 0 for item in found["items"])
        scanned = millstream("state", "scan", "endless", "count", "--start", "8")
        assert sorted(item["key"] for item in scanned["items"]) == [8, 9]
        top = millstream("state", "top", "endless", "count", "-n", "2", "--by", "n")
        assert len(top["items"]) == 2
        exported = millstream("state", "export", "endless", "count", str(tmp_path / "counts"))
        assert exported["rows"] == pq.read_metadata(tmp_path / "counts").num_rows == 10
        assert "/login?code=" in millstream("dashboard", "endless")["url"]
        assert millstream("top", "endless")["run"]["phase"] == "running"
        for command, shown in {
            ("ps",): "endless",
            ("status", "endless"): "2 of 2 active",
            ("events", "endless"): "drain",
            ("state", "jobs", "endless"): "count",
            ("state", "get", "endless", "count", "3"): '{"n": ',
            ("state", "scan", "endless", "count"): '{"n": ',
            ("state", "top", "endless", "count", "--by", "n"): '{"n": ',
        }.items():
            assert shown in printed(*command)

        listed = millstream("checkpoint", "ls", str(checkpoint))
        assert listed["workflow"] == "endless" and listed["epochs"][-1]["complete"]
        epoch = str(listed["epochs"][-1]["epoch"])
        assert millstream("checkpoint", "show", str(checkpoint))["epoch"] >= int(epoch)
        found = millstream("checkpoint", "get", str(checkpoint), "count", "3")
        assert found["value"]["n"] > 0
        assert "end" in millstream("stop", "endless")["preview"]["text"]
        assert run.await_termination()

    assert RunRegistry.of_user().runs() == []
    assert "no workflow 'endless'" in millstream("status", "endless", status=3)
