"""A run in terms of the contract, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.api.contract import BacklogView, ScanQuery, SlotRange, TopQuery
from millstream.api.event_view import page_of
from millstream.api.live_run import LiveRun
from millstream.api.served_run import ContinuationGoneError
from millstream.coordinator.state_reader import StateReader
from millstream.elastic.events import EventLog
from millstream.errors import ConfigError
from millstream.flow.plan import plan
from millstream.observe.history import RunHistory
from millstream.observe.progress import EpochProgress, JobProgress, Progress
from millstream.observe.source_backlog import SourceBacklog, total
from millstream.sim import World
from tests.coordinator.clusters import N0, N1, N2, SLOTS, Run


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 1.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Scene:
    """A cluster of two nodes, and how it is served."""

    def __init__(self, world: World) -> None:
        self.run = Run(world, nodes=2)
        self.clock = Clock()
        self.progress = Progress()
        self.stopped: list[bool] = []
        coordinator = self.run.coordinator
        history = RunHistory(coordinator.load.newest, self.clock)
        self.progress.listen(history.add)
        self.live = LiveRun(
            plan(two_jobs()),
            coordinator,
            self.progress,
            history,
            StateReader(coordinator),
            phase=lambda: "running",
            stop=lambda: self.stopped.append(True),
            backlog=lambda: [
                SourceBacklog(source="lines", unit="files", amount=3, per_epoch=2),
                SourceBacklog(source="clicks"),
            ],
            clock=self.clock,
        )

    def epoch(self) -> None:
        result = self.run.epoch()
        job = JobProgress(rows=10, keys=5, outputs=5, reduce_seconds=0.1, state_keys=7)
        self.progress.add(
            EpochProgress(
                epoch=result.record.epoch,
                tries=1,
                seconds=0.5,
                jobs={"first": job},
                nodes=2,
                time=self.clock(),
                phases=result.phases,
            )
        )


def two_jobs() -> ms.Workflow:
    flow = ms.Workflow("served")
    rows = flow.source("rows", ms.read.replay([{"word": "mill"}]))
    first = rows.key_by("word").reduce("first", ms.count())
    first.key_by("key").reduce("second", ms.count())
    return flow


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(3) as world:
        yield Scene(world)


def test_a_snapshot_shows_graph_epochs_nodes_and_ring(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        scene.epoch()
        now = scene.live.snapshot()

        assert [vertex.name for vertex in now.graph.vertices] == ["rows", "first", "second"]
        assert now.graph.edges[0].rows_per_second == now.jobs[0].rows_per_second > 0
        assert (now.run.committed, now.run.active, now.run.is_settled) == (1, 2, True)
        assert [epoch.epoch for epoch in now.epochs] == [0, 1]
        assert {"admit", "run", "commit", "seal"} <= {p.name for p in now.epochs[-1].phases}
        assert [node.id for node in now.nodes] == [N0, N1]
        assert sum(arc.stop - arc.start for arc in now.ring.arcs) == SLOTS
        assert (now.ring.moves, now.ring.under_replicated) == ([], 0)
        assert now.backlog == [
            BacklogView(source="lines", unit="files", amount=3, epochs=2),
            BacklogView(source="clicks", unit="rows", amount=None),
        ]
        assert now.throughput.latency_p50 == 0.5

    scene.run.main(main)


def test_a_snapshot_stays_the_same_until_something_changes(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        before = scene.live.snapshot()
        assert scene.live.snapshot() is before
        scene.epoch()
        after = scene.live.snapshot()
        assert after.number == before.number + 1

    scene.run.main(main)


def test_a_snapshot_after_a_change_shows_it_at_once(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        scene.clock.step = 0.0  # all of it within a moment
        assert scene.live.snapshot().run.is_settled
        scene.live.drain(N1, dry_run=True)
        assert scene.live.snapshot().run.is_settled
        scene.live.drain(N1, dry_run=False)
        assert not scene.live.snapshot().run.is_settled

    scene.run.main(main)


def test_a_dry_run_tells_what_a_change_then_does(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        planned = scene.live.scale(1, dry_run=True)
        assert scene.run.coordinator.roster.target == 2
        assert (planned.preview.nodes_before, planned.preview.nodes_after) == (2, 1)
        assert planned.preview.leaving == [N1]
        assert planned.preview.slots == len(scene.run.owned_by(N1))
        assert "will leave" in planned.preview.text

        grown = scene.live.scale(4, dry_run=True).preview
        assert (grown.joining, grown.slots) == (2, SLOTS // 2)
        assert {move.to for move in grown.transfers} == {"new-1", "new-2"}
        assert scene.live.rebalance(dry_run=True).preview.slots == 0
        assert scene.live.drain(N1, dry_run=True).preview.leaving == [N1]
        moved = scene.live.move([SlotRange(start=0, stop=SLOTS)], N1, dry_run=True).preview
        assert moved.slots == len(scene.run.owned_by(N0))
        with pytest.raises(ConfigError, match="from 1 to"):
            scene.live.scale(SLOTS + 1, dry_run=True)

        done = scene.live.scale(1, dry_run=False)
        assert done.run.target == 1
        for _ in range(4):
            scene.epoch()
            scene.run.rest(1.0)
        assert scene.run.owned_by(N1) == []

    scene.run.main(main)


def test_pending_moves_show_in_the_ring(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        seen: list[Any] = []
        scene.run.cluster.join()
        scene.run.rest(1.0)

        def grow() -> None:
            scene.run.coordinator.scaling.scale_to(3)

        scene.run.at["staged"] = grow
        scene.epoch()
        scene.run.at["staged"] = lambda: seen.append(scene.live.snapshot().ring.moves)
        scene.epoch()

        assert {move.to for move in seen[0]} == {N2}
        assert sum(move.stop - move.start for move in seen[0]) == SLOTS // 3

    scene.run.main(main)


def test_state_is_read_by_the_text_of_keys_and_in_pages(scene: Scene) -> None:
    def main() -> None:
        for _ in range(3):
            scene.epoch()
        expected = scene.run.expected()[1]
        some = sorted(expected)[0]
        [found] = scene.live.get_many("first", [some]).items
        assert (found.found, found.value) == (True, dict(expected[some]))
        jobs = {job.job: job.key_type for job in scene.live.state_jobs()}
        assert jobs["first"] == "str"
        with pytest.raises(ConfigError, match="the jobs are first, second"):
            scene.live.get_many("third", ["a"])

        keys: list[str] = []
        page = scene.live.scan(ScanQuery(job="first", limit=2))
        while True:
            keys += [item.text for item in page.items]
            if page.continuation is None:
                break
            used = page.continuation
            page = scene.live.scan(ScanQuery(job="first", limit=2, continuation=used))
            with pytest.raises(ContinuationGoneError):
                scene.live.scan(ScanQuery(job="first", continuation=used))
        assert sorted(keys) == sorted(expected)
        with pytest.raises(ConfigError, match="by must name"):
            scene.live.top(TopQuery(job="first"))

    scene.run.main(main)


def test_a_stop_happens_in_the_background_and_says_what_is_lost(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        assert "state is lost" in scene.live.stop(dry_run=True).preview.text
        assert scene.stopped == []

    scene.run.main(main)


def test_history_has_a_point_for_epochs_of_a_second(scene: Scene) -> None:
    def main() -> None:
        for _ in range(3):
            scene.epoch()
        history = scene.live.history(0.0)
        assert len(history.times) == 3
        assert all(len(values) == 3 for values in history.series.values())
        assert history.series["epoch_seconds"] == [0.5] * 3
        assert history.series["latency_p95"] == [0.5] * 3
        assert scene.live.history(history.times[-1]).times == []

    scene.run.main(main)


def test_history_has_the_backlog_while_somebody_looks(scene: Scene) -> None:
    def main() -> None:
        scene.epoch()
        scene.live.snapshot()
        scene.epoch()
        scene.clock.now += 10.0
        scene.epoch()
        assert scene.live.history(0.0).series["backlog"] == [None, 3, None]

    scene.run.main(main)


@pytest.mark.parametrize(
    ("waiting", "amount"),
    [
        ([], None),
        ([SourceBacklog(source="a")], None),
        ([SourceBacklog(source="a", amount=2), SourceBacklog(source="b")], 2),
        ([SourceBacklog(source="a", amount=2), SourceBacklog(source="b", amount=0)], 2),
        (
            [
                SourceBacklog(source="a", amount=2),
                SourceBacklog(source="b", unit="files", amount=1),
            ],
            None,
        ),
    ],
)
def test_backlogs_of_one_unit_are_added(waiting: list[SourceBacklog], amount: int | None) -> None:
    assert total(waiting) == amount


def test_a_decision_is_shown_with_what_came_of_it() -> None:
    log = EventLog(lambda: 1.0, lambda: 5)
    facts = {"policy": "ring", "actions": ["a"], "inputs": {"nodes": 2}, "predicted": {"nodes": 3}}
    decided = log.add("decision", "ring act", {**facts, "dry_run": False})
    open_ = page_of(log.all(), 0, 10).events[0].decision
    came = {"decision": decided.number, "after": {"nodes": 3}, "errors": {"nodes": 0.0}}
    log.add("outcome", "nodes from 2 to 3", came)

    page = page_of(log.all(), 0, 10)

    assert open_ is not None and open_.after is None
    shown = page.events[0].decision
    assert shown is not None and (shown.after, shown.errors) == ({"nodes": 3}, {"nodes": 0.0})
    assert page.events[1].decision is None
    assert [event.number for event in page_of(log.all(), 1, 10).events] == [2]
