"""The status of a run, as notebooks show it; without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from millstream.elastic.load import NodeLoad
from millstream.observe.progress import EpochProgress, JobProgress, Totals
from millstream.ring.ring import NodeId
from millstream.spark.status import Status
from millstream.wire.control import NodeStatus

JOB = JobProgress(
    rows=3000,
    keys=5,
    outputs=50,
    reduce_seconds=0.1,
    state_keys=70,
    watermark=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)
STATUS = Status(
    "flow",
    "running",
    12,
    3,
    [
        NodeStatus("a" * 32, "host-1", "1", "zone", 41, slots=30, copies=34, in_sync=33),
        NodeStatus("b" * 32, "host-2", "2", "zone", 42, slots=34, copies=30, in_sync=30),
    ],
    target=2,
    pending=4,
    totals=Totals(13, 39_000, 3.9, 0.3, 0.5, 70),
    last=EpochProgress(12, 1, 0.3, {"count": JOB}),
    load={NodeId("a" * 32): NodeLoad(node=NodeId("a" * 32), cpu=0.25, tuples=1500.0)},
)


def test_the_status_shows_epoch_rates_nodes_and_slots() -> None:
    html = STATUS._repr_html_()

    assert "Run of flow: running" in html
    for text in (
        "12 committed",
        "10,000 rows/s, epochs take 300 ms (p99 500 ms)",
        "2 of 2 active",
        "4 pending, ring 3",
    ):
        assert f">{text}</td>" in html
    first, second = (html[html.index(f">{name * 8}<") :] for name in "ab")
    for cell in ("active", "30", "34", "33", "1,500", "0.25", "host-1"):
        assert f">{cell}</td>" in first.partition("</tr>")[0]
    assert second.partition("</tr>")[0].count("&ndash;") == 2  # no load is known of it
    for cell in ("count", "3,000", "10,000", "50", "70", "2026-01-02 03:04:05Z"):
        assert f">{cell}</td>" in html.partition("Jobs in epoch 12")[2]


def test_before_the_first_epoch_there_are_no_rates() -> None:
    html = replace(STATUS, committed=-1, totals=Totals(0, 0, 0, 0, 0, 0), last=None).html

    assert "none committed" in html
    assert "rows/s" not in html and "Jobs" not in html


def test_the_store_slow_and_lost_nodes_and_waits_are_shown() -> None:
    html = replace(STATUS, durable=11, slow=["c" * 32], lost=["d" * 32], waits=["on a & b"]).html

    assert "12 committed, 11 in the store" in html
    assert ">cccccccc<" in html and ">dddddddd<" in html
    assert "Waiting: on a &amp; b" in html
    assert "Slow" not in STATUS.html and "Lost" not in STATUS.html


def test_names_of_hosts_and_waits_are_escaped() -> None:
    node = replace(STATUS.nodes[0], host="<b>host</b>")

    html = replace(STATUS, nodes=[node], waits=["<script>"]).html

    assert "<b>" not in html and "<script" not in html
    assert "&lt;b&gt;host" in html
