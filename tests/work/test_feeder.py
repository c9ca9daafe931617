from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from millstream.coordinator.request_service import StaleTaskError
from millstream.coordinator.roster import StateLostError
from millstream.errors import MillstreamError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.sim import SimNet, StalledError, World
from millstream.state.blocks import SLOT, from_bytes, to_bytes
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import Commit
from millstream.wire.epoch_record import EpochRecord, FetchRecord, JobTypes
from millstream.wire.feed import BrokenFeedError, End, Feed, FeedRefusedError, NotDeterministicError
from millstream.wire.membership import ReportSlow, ReportUnreachable
from millstream.wire.request import Request
from millstream.work.feeder import Feeder, end_of
from millstream.work.job_clock import JobClock, Tally, tallies_of, tally_block
from tests.node.machines import ALL, HIGH, LOW, ME, OTHER, THIRD, placed
from tests.work.running import SLOTS, blocks_of_pairs, job_of

JOB = 3
PAIRS = [(f"key {number}", number) for number in range(40)]
HALVES = placed([ME, OTHER], 0)
SECONDS = 1_000.0


def rows_of(*tasks: list[Any]) -> pa.Table:
    """The blocks of map tasks, as the shuffle brings them: the last one first."""
    job = job_of(lambda key, values, state: None)
    rows = [
        (0, JOB, 0, 0, task, 0, len(pairs), to_bytes(block))
        for task, pairs in reversed(list(enumerate(tasks)))
        for block in blocks_of_pairs(job, pairs)
    ]
    columns = zip(*rows, strict=True) if rows else [[] for _ in BLOCK_SCHEMA]
    return pa.table([list(column) for column in columns], schema=BLOCK_SCHEMA)


def with_tallies(rows: pa.Table, tallies: tuple[Tally, ...]) -> pa.Table:
    """The same blocks, and one that says what a map task counted."""
    block = to_bytes(tally_block(tallies))
    row = (0, JOB, 0, 0, 9, 9, 0, block)
    counted = pa.table([[value] for value in row], schema=BLOCK_SCHEMA)
    return pa.concat_tables([counted, rows])


ROWS = rows_of(PAIRS)


@dataclass
class Gauge:
    """How many feeds there are at the moment, and how many there were at most."""

    now: int = 0
    most: int = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        yield
        self.now -= 1


@dataclass
class FakeNode:
    """Takes feeds, and answers with the slots that it was given rows of."""

    net: SimNet
    gauge: Gauge
    feeds: list[Feed] = field(default_factory=list)
    tallies: list[tuple[Tally, ...]] = field(default_factory=list)
    problems: list[MillstreamError] = field(default_factory=list)
    always: MillstreamError | None = None
    silent: bool = False
    takes: float = 0.0
    digests: dict[range, set[str]] = field(default_factory=dict)

    def exchange(self, feed: Feed, items: Iterator[Any]) -> list[pa.RecordBatch]:
        self.feeds.append(feed)
        *batches, end = items
        assert isinstance(end, End)
        self.digests.setdefault(feed.slots, set()).add(end.digest)
        with self.gauge.one_more():
            self.net.sleep(self.takes)
        slots: list[int] = []
        for batch in batches:
            for block in batch.column("block").to_pylist():
                counted = tallies_of(from_bytes(block))
                if counted is None:
                    slots += from_bytes(block).column(SLOT).to_pylist()
                else:
                    self.tallies.append(counted)
        if self.silent:
            self.net.sleep(1e9)
        if self.always is not None or self.problems:
            raise self.always or self.problems.pop(0)
        return [pa.record_batch({"slot": sorted(set(slots))})]


class Scene:
    """A driver that gives records, nodes that are fed, and the task that feeds them."""

    def __init__(self, world: World, placement: Placement = HALVES, **options: Any) -> None:
        self.world = world
        self.unreachable: list[ReportUnreachable] = []
        self.slow: list[ReportSlow] = []
        self.on_unreachable: Callable[[], None] = lambda: None
        self.gauge = Gauge()
        self.driver = world.process("driver")
        world.serve("driver", "driver", self.answer)
        self.nodes = {node: self._start(node) for node in (ME, OTHER, THIRD)}
        self.record: EpochRecord | None = EpochRecord(
            incarnation=1,
            epoch=4,
            try_=2,
            committed=Commit(3, 1),
            time=99,
            placement=placement,
            addresses={node: node for node in self.nodes},
            **{"cuts": placement.cuts, **options},
        )
        self.net = world.process("task")

    def _start(self, node: NodeId) -> FakeNode:
        found = FakeNode(self.world.process(node), self.gauge)
        self.world.serve(node, node, lambda request: None, found.exchange)
        return found

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, ReportUnreachable):
            self.unreachable.append(request)
            self.on_unreachable()
            return None
        if isinstance(request, ReportSlow):
            self.slow.append(request)
            return None
        assert isinstance(request, FetchRecord) and (request.epoch, request.try_) == (4, 2)
        if self.record is None:
            raise StaleTaskError("over")
        return self.record

    def now_owned_by(self, placement: Placement) -> None:
        assert self.record is not None
        self.record = replace(self.record, placement=placement)

    def feed(self, slots: range = ALL, rows: pa.Table = ROWS, read: bool = True) -> list[int]:
        """Feed as a task that began with the record of this moment; gives the slots fed."""
        assert self.record is not None
        feeder = Feeder(self.net, "driver", self.record, attempt=7)

        def work() -> list[int]:
            outputs = feeder.feed(JOB, slots, rows, read)
            return [slot for batch in outputs for slot in batch.column("slot").to_pylist()]

        return self.world.run(work, "task", until=SECONDS)

    def tallies(self) -> dict[str, list[tuple[Tally, ...]]]:
        return {n: node.tallies for n, node in self.nodes.items() if node.feeds}

    def fed(self) -> dict[str, list[range]]:
        """What every node was fed, in the order of slots."""
        feeds = {name: node.feeds for name, node in self.nodes.items() if node.feeds}
        return {
            name: sorted((feed.slots for feed in fed), key=lambda slots: (slots.start, slots.stop))
            for name, fed in feeds.items()
        }


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as running:
        yield running


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


def expected(slots: range = ALL) -> list[int]:
    """The slots that have rows."""
    found: set[int] = set()
    for block in ROWS.column("block").to_pylist():
        found.update(from_bytes(block).column(SLOT).to_pylist())
    return sorted(slot for slot in found if slot in slots)


# -- a feed that goes well -------------------------------------------------------------------


def test_every_owner_is_fed_its_slots_and_outputs_come_in_the_order_of_slots(scene: Scene) -> None:
    assert scene.feed() == expected()

    assert scene.fed() == {ME: [LOW], OTHER: [HIGH]}
    assert scene.unreachable == []


def test_the_header_has_all_that_a_node_needs(world: World) -> None:
    schema = pa.schema([("n", pa.int64())])
    clock = JobClock(3, 4, {0: 9}, folding=False)
    scene = Scene(
        world,
        placed([ME], 6),
        types={JOB: JobTypes(output=schema)},
        clocks={JOB: clock, 9: JobClock()},
    )

    scene.feed(LOW, read=False)

    assert scene.nodes[ME].feeds == [
        Feed(
            incarnation=1,
            job=JOB,
            epoch=4,
            try_=2,
            attempt=7,
            ring=6,
            slots=LOW,
            committed=Commit(3, 1),
            time=99,
            rows=len(PAIRS),
            output=schema,
            read=False,
            clock=clock,
        )
    ]


def test_units_keep_their_cut_when_one_node_comes_to_own_all_of_them(world: World) -> None:
    scene = Scene(world)
    scene.now_owned_by(placed([THIRD], 1))

    assert scene.feed() == expected()

    assert scene.fed() == {THIRD: [LOW, HIGH]}


def test_units_are_cut_further_when_a_takeover_divides_them(world: World) -> None:
    scene = Scene(world)
    quarter = LOW.stop // 2
    scene.now_owned_by(placed(Ring.even([THIRD], ALL.stop).moved(range(quarter), ME), 1))

    assert scene.feed() == expected()

    assert scene.fed() == {ME: [range(quarter)], THIRD: [range(quarter, LOW.stop), HIGH]}


def scattered(version: int = 0) -> Placement:
    """Every slot has another owner than the one before."""
    owners = [(slot, (ME, OTHER, THIRD)[slot % 3]) for slot in ALL]
    return placed(Ring(0, SLOTS, tuple(owners)), version)


def test_several_owners_are_fed_at_a_time_and_outputs_come_in_the_order_of_slots(
    world: World,
) -> None:
    scene = Scene(world)
    scene.nodes[ME].takes = 30.0

    outputs = scene.feed()

    assert outputs == expected()
    assert len(scene.nodes[OTHER].feeds) == 1 and 30.0 < world.now < 31.0


def test_at_most_four_owners_are_fed_at_a_time(world: World) -> None:
    scene = Scene(world, scattered())
    for node in scene.nodes.values():
        node.takes = 5.0

    assert scene.feed() == expected()

    assert scene.gauge.most == 4
    counts = [feed.rows for node in scene.nodes.values() for feed in node.feeds]
    assert sorted(counts) == [0] * (SLOTS - 1) + [len(PAIRS)]
    assert 20.0 < world.now < 21.0  # sixteen feeds, four at a time
    fed = {node: [feed.slots.start for feed in found.feeds] for node, found in scene.nodes.items()}
    assert {node: sorted(starts) for node, starts in fed.items()} == {
        ME: [*range(0, SLOTS, 3)],
        OTHER: [*range(1, SLOTS, 3)],
        THIRD: [*range(2, SLOTS, 3)],
    }


def test_a_placement_fetched_for_one_share_is_used_for_those_after_it(world: World) -> None:
    scene = Scene(world, scattered())
    world.crash(OTHER)
    scene.on_unreachable = lambda: scene.now_owned_by(placed([ME], 1))

    assert scene.feed() == expected()

    assert scene.unreachable == [ReportUnreachable(OTHER, "task 7", 1)]
    assert {feed.ring for feed in scene.nodes[ME].feeds if feed.slots.start >= 4} == {1}


def test_a_unit_has_the_same_bytes_whenever_and_from_whatever_it_was_cut(world: World) -> None:
    quarter, rest = range(LOW.stop // 2), range(LOW.stop // 2, LOW.stop)
    divided = placed(Ring.even([THIRD], SLOTS).moved(quarter, OTHER), 1)
    flags = [(f"key {number}", number % 3 == 0) for number in range(200)]
    rows = rows_of(flags[:90], flags[90:])
    scene = Scene(world)
    world.crash(ME)
    scene.on_unreachable = lambda: scene.now_owned_by(divided)

    scene.feed(rows=rows)  # LOW is cut off first, and then in two
    scene.feed(rows=rows)  # the quarters are cut off at once

    assert len(scene.nodes[OTHER].digests[quarter]) == len(scene.nodes[THIRD].digests[rest]) == 1
    assert [feed.slots for feed in scene.nodes[THIRD].feeds].count(rest) == 2


def test_slots_without_rows_are_fed_too(scene: Scene) -> None:
    assert scene.feed(rows=rows_of([])) == []

    assert scene.fed() == {ME: [LOW], OTHER: [HIGH]}


def test_values_are_counted_in_one_share_only(scene: Scene) -> None:
    scene.feed(rows=rows_of(PAIRS, PAIRS))

    assert [node.feeds[0].rows for node in (scene.nodes[ME], scene.nodes[OTHER])] == [80, 0]


def test_values_are_counted_once_when_a_takeover_divides_the_first_share(world: World) -> None:
    scene = Scene(world)
    divided = Ring.even([THIRD], SLOTS).moved(range(LOW.stop // 2), OTHER)
    world.crash(ME)
    scene.on_unreachable = lambda: scene.now_owned_by(placed(divided, 1))

    assert scene.feed(rows=with_tallies(ROWS, (Tally(4, rows=40),))) == expected()

    feeds = [feed for node in scene.nodes.values() for feed in node.feeds]
    assert {feed.slots.start: feed.rows for feed in feeds} == {0: 40, 4: 0, 8: 0}
    assert [len(found) for found in scene.tallies().values()] == [1, 0]


def test_what_map_tasks_counted_goes_with_the_first_share(scene: Scene) -> None:
    counted = (Tally(4, rows=40, latest=9),)
    scene.feed(rows=with_tallies(rows_of(PAIRS), counted))

    assert scene.tallies() == {ME: [counted], OTHER: []}
    assert [len(scene.nodes[node].feeds) for node in (ME, OTHER)] == [1, 1]


def test_what_map_tasks_counted_is_fed_even_without_rows(world: World) -> None:
    counted = (Tally(4, late=3),)
    scene = Scene(world, placed([ME], 6))
    scene.feed(rows=with_tallies(rows_of([]), counted))

    assert scene.tallies() == {ME: [counted]}


def test_copies_are_fed_only_where_backups_keep_logs(world: World) -> None:
    backed_up = placed([ME], 0, other=LOW, third=HIGH)
    Scene(world, backed_up).feed()
    with World(2) as another:
        scene = Scene(another, backed_up, logs=True)

        scene.feed(LOW)
        assert scene.fed() == {ME: [LOW], OTHER: [LOW]}
        scene.feed(ALL)

    assert scene.fed() == {ME: [LOW, ALL], OTHER: [LOW, ALL], THIRD: [ALL]}
    copies = [feed.copy for node in scene.nodes.values() for feed in node.feeds]
    assert copies == [False, False, True, True, True]


def test_a_dead_backup_does_not_delay_a_feed(world: World) -> None:
    scene = Scene(world, placed([ME], 0, other=ALL), logs=True)
    world.crash(OTHER)

    assert scene.feed() == expected()
    assert scene.unreachable == [] and world.now < 1.0


def test_the_end_marker_does_not_depend_on_the_order_of_rows() -> None:
    rows = rows_of(PAIRS[:5], PAIRS[5:9], PAIRS[9:])
    shuffled = rows.take([2, 0, 1])

    assert end_of(rows) == end_of(shuffled) and end_of(rows).blocks == 3
    assert end_of(rows) != end_of(rows_of(PAIRS[:5], PAIRS[5:9]))
    assert end_of(rows) != end_of(rows_of(PAIRS[5:9], PAIRS[:5], PAIRS[9:]))


# -- feeds that fail -------------------------------------------------------------------------


def test_a_task_whose_node_dies_retries_with_the_new_owner(scene: Scene) -> None:
    scene.world.crash(OTHER)
    scene.on_unreachable = lambda: scene.now_owned_by(placed([ME, THIRD], 1))

    assert scene.feed() == expected()

    assert scene.unreachable == [ReportUnreachable(OTHER, "task 7", 1)]
    assert scene.fed() == {ME: [LOW], THIRD: [HIGH]}
    assert scene.nodes[THIRD].feeds[0].ring == 1


def test_what_was_fed_already_is_not_fed_again_after_a_takeover(scene: Scene) -> None:
    scene.world.crash(OTHER)
    scene.on_unreachable = lambda: scene.now_owned_by(placed([THIRD], 1))

    assert scene.feed() == expected()
    assert scene.fed() == {ME: [LOW], THIRD: [HIGH]}


def test_a_report_has_the_number_of_consecutive_failures_to_reach_a_node(
    scene: Scene,
) -> None:
    def on_unreachable() -> None:
        if len(scene.unreachable) == 3:
            scene.now_owned_by(placed([OTHER], 1))

    scene.world.crash(ME)
    scene.on_unreachable = on_unreachable

    scene.feed()

    assert scene.unreachable == [ReportUnreachable(ME, "task 7", at) for at in (1, 2, 3)]


@pytest.mark.parametrize(
    "problem",
    [FeedRefusedError("not mine", stale=False), BrokenFeedError("broke off")],
    ids=lambda problem: type(problem).__name__,
)
def test_a_refused_or_broken_feed_is_tried_again_without_suspecting_anybody(
    scene: Scene, problem: MillstreamError
) -> None:
    scene.nodes[ME].problems = [problem] * 3

    assert scene.feed() == expected()

    assert scene.fed() == {ME: [LOW] * 4, OTHER: [HIGH]} and scene.unreachable == []


@pytest.mark.parametrize(
    "problem",
    [FeedRefusedError("too late", stale=True), NotDeterministicError("job", 4, "0 to 7")],
    ids=lambda problem: type(problem).__name__,
)
def test_what_another_attempt_cannot_mend_is_raised_at_once(
    scene: Scene, problem: MillstreamError
) -> None:
    scene.nodes[OTHER].problems = [problem]

    with pytest.raises(type(problem)) as caught:
        scene.feed()

    assert caught.value.args == problem.args
    assert scene.fed() == {ME: [LOW], OTHER: [HIGH]}


def test_after_a_minute_without_success_a_task_gives_up(scene: Scene) -> None:
    scene.nodes[ME].always = FeedRefusedError("not yet", stale=False)

    with pytest.raises(FeedRefusedError, match="not yet"):
        scene.feed()

    assert 60.0 < scene.world.now < 63.0


def test_every_share_has_a_timeout_of_its_own(world: World) -> None:
    owners = [(0, ME), (1, OTHER), (2, ME), (3, OTHER), (4, THIRD)]
    scene = Scene(world, placed(Ring(0, SLOTS, tuple(owners))))
    for node, seconds in ((ME, 45.0), (THIRD, 90.0)):
        scene.nodes[node].always = FeedRefusedError("not yet", stale=False)
        world.at(seconds, clearing(scene.nodes[node]))

    assert scene.feed() == expected()
    assert world.now > 90.0


def clearing(node: FakeNode) -> Callable[[], None]:
    def clear() -> None:
        node.always = None

    return clear


def test_lost_state_ends_the_task_with_the_error_that_says_so(scene: Scene) -> None:
    def on_unreachable() -> None:
        raise StateLostError(8, SLOTS, (ME,), 0)

    scene.on_unreachable = on_unreachable
    scene.world.crash(ME)

    with pytest.raises(StateLostError):
        scene.feed()


def test_a_task_of_a_try_that_is_over_ends(scene: Scene) -> None:
    def over() -> None:
        scene.record = None

    scene.on_unreachable = over
    scene.world.crash(ME)

    with pytest.raises(StaleTaskError):
        scene.feed()


def test_a_silent_node_is_left_when_another_owns_its_slots(scene: Scene) -> None:
    scene.nodes[ME].silent = True
    scene.world.at(20.0, lambda: scene.now_owned_by(placed([OTHER], 1)))

    assert scene.feed() == expected()

    assert 20.0 < scene.world.now < 25.0
    assert scene.fed() == {ME: [LOW], OTHER: [LOW, HIGH]}


def test_a_silent_node_is_waited_for_as_long_as_it_owns_its_slots(scene: Scene) -> None:
    scene.nodes[ME].silent = True

    with pytest.raises(StalledError):
        scene.feed()

    assert scene.fed() == {ME: [LOW], OTHER: [HIGH]}
    [report, *_] = scene.slow
    assert report.node == ME and "feed of epoch 4" in report.reason


def test_a_feed_that_breaks_off_is_no_reason_to_suspect_a_node_that_answers(scene: Scene) -> None:
    scene.nodes[ME].problems = [UnreachableError(ME, "Stream removed (Socket closed)")] * 5

    assert scene.feed() == expected()

    assert scene.fed() == {ME: [LOW] * 6, OTHER: [HIGH]} and scene.unreachable == []


def test_the_time_in_which_the_coordinator_looks_at_a_node_does_not_count(scene: Scene) -> None:
    def on_unreachable() -> None:
        scene.driver.sleep(55.0)
        if len(scene.unreachable) == 3:
            scene.now_owned_by(placed([OTHER], 1))

    scene.world.crash(ME)
    scene.on_unreachable = on_unreachable

    assert scene.feed() == expected()

    assert scene.world.now > 150.0


def test_a_dead_driver_ends_the_task(scene: Scene) -> None:
    scene.world.crash(ME)
    scene.world.crash("driver")

    with pytest.raises(UnreachableError) as caught:
        scene.feed()

    assert caught.value.address == "driver"
