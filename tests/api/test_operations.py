from __future__ import annotations

import msgspec

from millstream.api import contract as c
from millstream.errors import MillstreamError
from millstream.wire.persistence import NotReadyError
from tests.api.conftest import Scene


def test_a_snapshot_is_the_json_of_the_contract(scene: Scene) -> None:
    answer = scene.client("viewer").get("/api/v1/snapshot")

    assert answer.status_code == 200
    assert msgspec.json.decode(answer.content, type=c.Snapshot) == scene.run.now


def test_history_and_events_are_those_after_what_was_seen(scene: Scene) -> None:
    scene.run.add_event("join", "node 1 joined")
    scene.run.add_event("scale", "from 1 to 2 nodes")
    viewer = scene.client("viewer")

    history = viewer.get("/api/v1/history", params={"since": 1e9 - 2}).json()
    events = viewer.get("/api/v1/events", params={"since": 1}).json()

    assert history == {"times": [1e9 - 1], "series": {"rows_per_second": [1000.0]}}
    assert [event["kind"] for event in events["events"]] == ["scale"]
    assert events["newest"] == 2


def test_state_is_read_by_key_in_pages_and_by_size(scene: Scene) -> None:
    viewer = scene.client("viewer")

    one = viewer.get("/api/v1/state/get", params={"job": "counts", "key": "mill"}).json()
    many = viewer.post("/api/v1/state/get-many", json={"job": "counts", "keys": ["a", "bc"]}).json()
    page = viewer.get("/api/v1/state/scan", params={"job": "counts", "limit": 2}).json()
    top = viewer.get("/api/v1/state/top", params={"job": "counts", "n": 1}).json()

    assert one["epoch"] == 7
    assert one["items"] == [{"key": "mill", "text": "mill", "found": True, "value": 4}]
    assert [item["value"] for item in many["items"]] == [1, 2]
    assert [item["key"] for item in page["items"]] == ["a", "bc"]
    assert [item["key"] for item in top["items"]] == ["def"]


def test_changes_are_made_and_a_dry_run_makes_none(scene: Scene) -> None:
    operator = scene.client("operator")
    slots = [{"start": 0, "stop": 8}]

    asked = [
        operator.post("/api/v1/scale", json={"nodes": 4}),
        operator.post("/api/v1/rebalance", json={}),
        operator.post("/api/v1/drain", json={"node": "0"}),
        operator.post("/api/v1/move", json={"slots": slots, "to": "1"}),
        operator.post("/api/v1/stop", json={"dry_run": True}),
    ]

    assert [answer.status_code for answer in asked] == [200] * 5
    assert [answer.json()["dry_run"] for answer in asked] == [False] * 4 + [True]
    assert scene.run.changes == [
        ("scale", 4),
        ("rebalance", None),
        ("drain", "0"),
        ("move", ((c.SlotRange(start=0, stop=8),), "1")),
    ]


def test_wrong_values_are_refused_with_what_is_allowed(scene: Scene) -> None:
    operator = scene.client("operator")

    wrong = operator.post("/api/v1/scale", json={"nodes": 0})
    missing = operator.get("/api/v1/state/get", params={"job": "counts"})
    broken = operator.post(
        "/api/v1/scale", content=b"{", headers={"Content-Type": "application/json"}
    )
    unknown = operator.get("/api/v1/state/get", params={"job": "nothing", "key": "a"})

    assert wrong.status_code == 422
    assert "nodes" in wrong.json()["detail"]
    assert missing.status_code == 422
    assert broken.status_code == 400
    assert unknown.status_code == 422
    assert "the jobs are counts" in unknown.json()["detail"]
    assert scene.run.changes == []


def test_a_used_continuation_is_gone(scene: Scene) -> None:
    answer = scene.client("viewer").get(
        "/api/v1/state/scan", params={"job": "counts", "continuation": "abc"}
    )

    assert answer.status_code == 410


def test_errors_of_the_run_say_what_to_do_and_unknown_ones_say_nothing(scene: Scene) -> None:
    viewer = scene.client("viewer")

    scene.run.failure = NotReadyError("the workflow is starting; retry in a moment")
    starting = viewer.get("/api/v1/snapshot")
    scene.run.failure = MillstreamError("the run has lost its state")
    lost = viewer.get("/api/v1/snapshot")
    scene.run.failure = KeyError("a secret")
    failed = viewer.get("/api/v1/snapshot")

    assert (starting.status_code, starting.headers["retry-after"]) == (503, "1")
    assert (lost.status_code, lost.json()["detail"]) == (409, "the run has lost its state")
    assert failed.status_code == 500
    assert "secret" not in failed.text


def test_what_does_not_exist_is_not_found(scene: Scene) -> None:
    viewer = scene.client("viewer")

    assert viewer.get("/api/v1/nothing").status_code == 404
    assert viewer.post("/api/v1/snapshot", json={}).status_code == 405
    assert viewer.get("/assets/../contract.py").status_code == 404
