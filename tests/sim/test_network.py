from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from millstream.errors import MillstreamError, Place, WorkflowError
from millstream.sim import Faults, World
from millstream.sim.brief import brief
from millstream.wire.calls import UnreachableError
from millstream.wire.net import Delivery, Net
from tests.wire.requests import Sent, end_of, header_of

NEVER = 1e6
ROWS = pa.table({"x": list(range(10))})
END = end_of(("end", 10))


@dataclass
class Node:
    """Keeps what reaches it."""

    net: Net
    work: float = 0.0
    acted: list[tuple[str, object]] = field(default_factory=list)
    fed: list[tuple[Any, list[int], bool]] = field(default_factory=list)
    finished: int = 0

    def answer(self, request: Sent) -> object:
        action, body = request.action, request.body
        self.net.sleep(self.work)
        self.acted.append((action, body))
        if action == "refuse":
            raise WorkflowError("bad", "make it good", Place("a.py", 3))
        if action == "bug":
            raise ZeroDivisionError("a bug")
        return body

    def exchange(self, header: Any, blocks: Iterator[Any]) -> list[pa.RecordBatch]:
        if header == "refuse at once":
            raise WorkflowError("bad", "make it good")
        number, values = len(self.fed), list[int]()
        self.fed.append((header, values, False))
        for item in blocks:
            assert not self.fed[number][2]
            if isinstance(item, pa.RecordBatch):
                values += item.column("x").to_pylist()
            else:
                assert item == ("end", 10)
                self.fed[number] = (header, values, True)
            if header == "slow":
                self.net.sleep(1)
        self.finished += 1
        if header == "refuse":
            raise WorkflowError("bad", "make it good")
        return list(pa.table({"y": [len(values)]}).to_batches())


class Scene:
    """A driver, some nodes, and a world to put them in."""

    def __init__(self, seed: int = 1, nodes: int = 1, faults: Faults | None = None) -> None:
        self.world = World(seed)
        self.world.faults = faults or Faults()
        self.driver = self.world.process("driver")
        self.nodes = [self.start(f"node-{number}") for number in range(nodes)]

    def start(self, name: str) -> Node:
        node = Node(self.world.process(name))
        self.world.serve(name, f"at {name}", node.answer, node.exchange)
        return node

    def run(self, main: Callable[[], Any]) -> Any:
        return self.world.run(main, "driver", until=NEVER)

    def rest(self, seconds: float) -> None:
        """Let come what is still under way."""
        self.run(lambda: self.driver.sleep(seconds))

    def call(self, action: str, body: object = None, timeout: float = 30.0) -> Any:
        return self.driver.call("at node-0", Sent(action, body), timeout)

    def failing(self, action: str, body: object = None, timeout: float = 30.0) -> UnreachableError:
        with pytest.raises(UnreachableError) as failure:
            self.call(action, body, timeout)
        return failure.value

    def feed(
        self, header: Any = "header", copies: int = 0, abandoned: Callable[[], bool] | None = None
    ) -> list[int]:
        outputs = self.driver.feed(
            Delivery("at node-0", header),
            [Delivery(f"at node-{n + 1}", header_of(f"copy {n}")) for n in range(copies)],
            ROWS,
            END,
            abandoned or (lambda: False),
        )
        return [value for batch in outputs for value in batch.column("y").to_pylist()]

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *exc: object) -> None:
        self.world.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


def test_a_call_answers_and_shares_nothing(scene: Scene) -> None:
    body = {"a": [1]}
    answer = scene.run(lambda: scene.call("echo", body))
    assert answer == body
    [(action, got)] = scene.nodes[0].acted
    assert (action, got) == ("echo", body)
    assert answer is not got
    assert got is not body
    assert 0.001 < scene.world.now < 0.2
    assert "node-0 <- driver Sent('echo', {'a': [1]})" in scene.world.story()
    assert "driver <- node-0 Sent = {'a': [1]}" in scene.world.story()


def test_an_error_arrives_as_it_was(scene: Scene) -> None:
    with pytest.raises(WorkflowError, match=r"a.py:3: bad; make it good") as error:
        scene.run(lambda: scene.call("refuse"))
    assert error.value.place == Place("a.py", 3)


def test_a_bug_of_a_server_stops_the_world(scene: Scene) -> None:
    def main() -> NoReturn:
        try:
            scene.call("bug")
        finally:
            pytest.fail("no caller sees it")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        scene.world.run(main, "driver", until=NEVER)
    scene.world.crash("driver")


def test_calls_overtake_each_other(scene: Scene) -> None:
    calls = [lambda n=n: scene.call("echo", n) for n in range(20)]
    assert scene.run(lambda: scene.driver.gather(calls)) == list(range(20))
    bodies = [body for _, body in scene.nodes[0].acted]
    assert bodies != sorted(bodies, key=str)
    assert sorted(bodies, key=str) == sorted(range(20), key=str)


def test_a_crashed_server_refuses(scene: Scene) -> None:
    scene.world.crash("node-0")
    failure = scene.run(lambda: scene.failing("echo"))
    assert "connect" in failure.reason
    assert failure.address == "at node-0"
    assert scene.world.now < 1
    with pytest.raises(UnreachableError, match="connect"):
        scene.run(lambda: scene.driver.call("nowhere", Sent("echo")))
    again = scene.start("node-0")
    assert scene.run(lambda: scene.call("echo", 7)) == 7
    assert again.acted == [("echo", 7)]


def test_a_crash_breaks_the_calls_in_flight(scene: Scene) -> None:
    scene.nodes[0].work = 5.0
    scene.world.at(1, lambda: scene.world.crash("node-0"))
    failure = scene.run(lambda: scene.failing("echo"))
    assert "closed" in failure.reason
    assert 1 < scene.world.now < 1.2
    assert scene.nodes[0].acted == []


@pytest.mark.parametrize("moment", ["serve", "answer"])
def test_a_server_may_crash_before_or_after_it_executed(scene: Scene, moment: str) -> None:
    def on_step(process: str, what: str) -> None:
        if (process, what) == ("node-0", f"{moment} driver Sent"):
            scene.world.crash("node-0")

    scene.world.on_step = on_step
    failure = scene.run(lambda: scene.failing("echo"))
    assert "closed" in failure.reason
    assert bool(scene.nodes[0].acted) == (moment == "answer")


def test_a_call_outlives_its_caller(scene: Scene) -> None:
    caller = scene.world.process("worker")
    scene.nodes[0].work = 5.0
    caller.spawn(lambda: caller.call("at node-0", Sent("echo")), "caller")
    scene.world.at(1, lambda: scene.world.crash("worker"))
    scene.rest(10)
    assert scene.nodes[0].acted == [("echo", None)]


def test_a_paused_server_is_silent_until_it_resumes(scene: Scene) -> None:
    scene.world.pause("node-0")

    def main() -> Any:
        failure = scene.failing("echo", 1, timeout=3)
        assert "Deadline" in failure.reason
        assert scene.driver.now() == pytest.approx(3, abs=0.01)
        scene.world.at(2, lambda: scene.world.resume("node-0"))
        return scene.call("echo", 2)

    assert scene.run(main) == 2
    assert scene.world.now == pytest.approx(5, abs=0.2)
    assert sorted(scene.nodes[0].acted, key=str) == [("echo", 1), ("echo", 2)]


def test_a_cut_loses_requests_in_one_direction(scene: Scene) -> None:
    world = scene.world
    world.cut("driver", "node-0")
    reasons = [
        scene.run(lambda: scene.failing("echo", timeout=2)).reason.split()[-1] for _ in range(20)
    ]
    assert set(reasons) == {"closed)", "Exceeded"}  # nobody refuses: it lives
    assert scene.nodes[0].acted == []
    backward = lambda: scene.nodes[0].net.call("at driver", Sent("echo", 5))  # noqa: E731
    world.serve("driver", "at driver", lambda request: None)
    with pytest.raises(UnreachableError, match="Deadline"):
        world.run(backward, "node-0", until=NEVER)
    world.mend("driver", "node-0")
    assert scene.run(lambda: scene.call("echo", 7)) == 7


def test_a_cut_way_back_means_executed_but_unreachable(scene: Scene) -> None:
    scene.world.cut("node-0", "driver")
    failure = scene.run(lambda: scene.failing("echo", 1, timeout=2))
    assert "Deadline" in failure.reason
    assert scene.world.now == pytest.approx(2, abs=0.01)
    assert scene.nodes[0].acted == [("echo", 1)]


def test_lost_requests_are_not_executed() -> None:
    with Scene(faults=Faults(lose_request=1.0)) as scene:
        for _ in range(10):
            scene.run(lambda: scene.failing("echo", timeout=2))
        scene.rest(10)
        assert scene.nodes[0].acted == []


def test_a_lost_answer_means_executed_but_unreachable() -> None:
    with Scene(faults=Faults(lose_answer=1.0)) as scene:
        scene.nodes[0].work = 0.01
        reasons = [
            scene.run(lambda: scene.failing("echo", timeout=2)).reason.split()[-1]
            for _ in range(20)
        ]
        assert set(reasons) == {"closed)", "Exceeded"}
        scene.rest(10)
        assert scene.nodes[0].acted == [("echo", None)] * 20


def test_a_duplicate_is_executed_twice_and_answered_once() -> None:
    with Scene(faults=Faults(duplicate=1.0)) as scene:
        with pytest.raises(WorkflowError):
            scene.run(lambda: scene.call("refuse", 1))
        scene.rest(1)
        assert scene.nodes[0].acted == [("refuse", 1)] * 2


def test_slow_messages_take_seconds() -> None:
    with Scene(faults=Faults(slow=1.0)) as scene:
        for _ in range(10):
            scene.run(lambda: scene.call("echo"))
        assert scene.world.now > 10


def test_a_feed_reaches_the_primary_and_its_copies() -> None:
    with Scene(nodes=3) as scene:
        assert scene.run(lambda: scene.feed(copies=2)) == [10]
        scene.rest(1)
        everything = list(range(10))
        assert [node.fed for node in scene.nodes] == [
            [("header", everything, True)],
            [("copy 0", everything, True)],
            [("copy 1", everything, True)],
        ]


def test_rows_arrive_in_one_or_several_chunks() -> None:
    counts = set()
    for seed in range(10):
        with Scene(seed) as scene:
            steps: list[str] = []
            scene.world.on_step = lambda process, what, steps=steps: steps.append(what)
            scene.run(scene.feed)
            counts.add(steps.count("read driver"))
    assert counts == {3, 4}  # chunks, the end marker, and the end


def test_a_feed_of_no_rows_has_its_end_marker(scene: Scene) -> None:
    def main() -> None:
        scene.driver.feed(
            Delivery("at node-0", header_of(1)), [], ROWS.slice(0, 0), END, lambda: False
        )

    scene.run(main)
    assert scene.nodes[0].fed == [(1, [], True)]


def test_a_refused_feed_raises_what_the_primary_raised(scene: Scene) -> None:
    with pytest.raises(WorkflowError, match="make it good"):
        scene.run(lambda: scene.feed("refuse"))


def test_failures_of_copies_are_not_reported() -> None:
    with Scene(nodes=3) as scene:
        scene.world.crash("node-1")
        scene.world.pause("node-2")
        assert scene.run(lambda: scene.feed(copies=2)) == [10]
        assert scene.world.now < 1


def test_a_feed_may_break_off_midway() -> None:
    seen = set()
    for seed in range(20):
        with Scene(seed, nodes=2, faults=Faults(break_feed=1.0)) as scene:

            def main(scene: Scene = scene) -> None:
                with pytest.raises(UnreachableError, match="closed"):
                    scene.feed(copies=1)

            scene.run(main)
            scene.rest(20)
            for node in scene.nodes:
                [(_, values, complete)] = node.fed
                assert not complete
                seen.add(len(values))
    assert {0, 10} < seen  # nothing; something; all but the end marker


def test_feeds_break_independently() -> None:
    outcomes = set()
    for seed in range(20):
        with Scene(seed, nodes=2, faults=Faults(break_feed=0.5)) as scene:

            def main(scene: Scene = scene) -> bool:
                try:
                    return scene.feed(copies=1) == [10]
                except UnreachableError:
                    return False

            answered = scene.run(main)
            scene.rest(20)
            complete = [any(entry[2] for entry in node.fed) for node in scene.nodes]
            assert complete[0] == answered
            outcomes.add(tuple(complete))
    assert len(outcomes) == 4


def on_read(scene: Scene, fault: Callable[[], None], number: int = 1) -> None:
    """Let a fault happen while a feed is under way."""
    reads: list[str] = []

    def on_step(process: str, what: str) -> None:
        if what.startswith("read "):
            reads.append(process)
            if len(reads) == number:
                fault()

    scene.world.on_step = on_step


@pytest.mark.parametrize("seed", range(10))
def test_a_feed_of_a_crashed_sender_breaks_off(seed: int) -> None:
    with Scene(seed) as scene:
        worker = scene.world.process("worker")

        def feed() -> None:
            to = Delivery("at node-0", header_of("header"))
            worker.feed(to, [], ROWS, END, lambda: False)

        scene.world.max_delay = 0.001
        on_read(scene, lambda: scene.world.crash("worker"))
        worker.spawn(feed, "feeder")
        scene.rest(1)
        [(_, values, complete)] = scene.nodes[0].fed
        assert (values, complete, scene.nodes[0].finished) == ([], False, 1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_feed_waits_while_its_sender_is_paused(scene: Scene, number: int) -> None:
    before: list[bool] = []

    def resume() -> None:
        before.append(scene.nodes[0].fed[0][2])
        scene.world.resume("driver")

    on_read(scene, lambda: scene.world.pause("driver"), number)
    scene.world.at(5, resume)
    assert scene.run(scene.feed) == [10]
    assert before == [False]


def test_a_feed_that_is_given_up_never_completes() -> None:
    for seed in range(20):
        with Scene(seed) as scene:
            world = scene.world

            def main(scene: Scene = scene) -> None:
                with pytest.raises(UnreachableError):
                    scene.feed(abandoned=lambda: True)

            on_read(scene, lambda world=world: world.cut("driver", "node-0"))  # type: ignore[misc]
            scene.run(main)
            world.mend("driver", "node-0")
            scene.rest(20)
            assert scene.nodes[0].fed == [("header", [], False)]
            assert scene.nodes[0].finished == 1


def test_copies_of_a_refused_feed_complete_or_break_off() -> None:
    outcomes = set()
    for seed in range(30):
        with Scene(seed, nodes=2) as scene:

            def main(scene: Scene = scene) -> None:
                with pytest.raises(WorkflowError):
                    scene.feed("refuse at once", copies=1)

            scene.run(main)
            scene.rest(20)
            assert scene.nodes[1].finished == len(scene.nodes[1].fed)
            outcomes.add(tuple(complete for _, _, complete in scene.nodes[1].fed))
    assert {(True,), (False,)} <= outcomes


def test_a_crash_of_the_primary_breaks_the_feed(scene: Scene) -> None:
    on_read(scene, lambda: scene.world.crash("node-0"))
    with pytest.raises(UnreachableError, match="closed"):
        scene.run(scene.feed)
    with pytest.raises(UnreachableError, match="connect"):
        scene.run(scene.feed)


def test_a_feed_to_a_silent_primary_is_given_up_when_abandoned() -> None:
    with Scene(nodes=2) as scene:
        asked: list[float] = []

        def abandoned() -> bool:
            asked.append(scene.world.now)
            assert scene.driver.call("at node-1", Sent("still there?")) is None
            return len(asked) == 4

        scene.world.pause("node-0")
        with pytest.raises(UnreachableError, match="abandoned"):
            scene.run(lambda: scene.feed(abandoned=abandoned))
        assert asked == pytest.approx([1, 2, 3, 4], abs=0.5)
        scene.world.resume("node-0")
        scene.rest(20)
        assert len(scene.nodes[0].fed) == 1


def test_an_answer_that_arrives_while_abandoned_is_polled_counts(scene: Scene) -> None:
    def abandoned() -> bool:
        scene.driver.sleep(10)
        return False

    assert scene.run(lambda: scene.feed("slow", abandoned=abandoned)) == [10]
    assert 10 < scene.world.now < 12


def test_a_feed_survives_a_short_cut_or_breaks() -> None:
    for way in (("driver", "node-0"), ("node-0", "driver")):
        outcomes = set()
        for seed in range(20):
            with Scene(seed) as scene:
                scene.world.cut(*way)
                scene.world.at(2, lambda scene=scene, way=way: scene.world.mend(*way))  # type: ignore[misc]

                def main(scene: Scene = scene) -> str:
                    try:
                        return f"{scene.feed()}"
                    except UnreachableError as failure:
                        return failure.reason.split()[-1]

                outcomes.add(scene.run(main))
        assert outcomes == ({"[10]", "closed)"} if way[0] == "driver" else {"[10]"})


def test_lost_feeds_fail_in_the_end() -> None:
    for faults in (Faults(lose_request=1.0), Faults(lose_answer=1.0)):
        with Scene(faults=faults) as scene:
            with pytest.raises(UnreachableError, match="closed"):
                scene.run(scene.feed)
            scene.rest(1)
            assert len(scene.nodes[0].fed) == (1 if faults.lose_answer else 0)


def messy(seed: int) -> tuple[list[str], int]:
    """A run in which everything goes wrong that can."""
    faults = Faults(0.1, 0.1, 0.2, 0.2, 0.1, 0.05)
    with Scene(seed, nodes=3, faults=faults) as scene:
        world = scene.world

        def on_step(process: str, what: str) -> None:
            if process != "driver" and world.maybe(0.02):
                fault = world.random.choice([world.crash, world.pause])
                fault(process)

        def mend() -> None:
            for number in range(3):
                world.resume(f"node-{number}")
                world.mend("driver", f"node-{number}")
                if not world.alive(f"node-{number}"):
                    scene.start(f"node-{number}")
            world.cut("driver", f"node-{world.random.randrange(3)}")
            world.at(5, mend)

        def client(number: int) -> None:
            for turn in range(30):
                try:
                    tags = {"apple", "pear", "plum", f"{number}"}
                    scene.driver.call(f"at node-{turn % 3}", Sent("echo", (turn, tags)), timeout=3)
                    scene.feed(copies=2, abandoned=lambda: world.maybe(0.2))
                except MillstreamError as problem:
                    world.note(f"client {number}: {problem}")

        world.on_step = on_step
        world.at(5, mend)
        scene.run(
            lambda: scene.driver.gather([lambda number=n: client(number) for n in range(4)])  # type: ignore[misc]
        )
        return world.trace, world.fingerprint


def test_the_same_seed_gives_the_same_run() -> None:
    trace, fingerprint = messy(3)
    assert messy(3) == (trace, fingerprint)
    assert len(trace) > 300
    text = "\n".join(trace)
    for event in ("crashes", "pauses", "resumes", "answer lost", "request lost", "breaks off"):
        assert event in text
    assert messy(4)[1] != fingerprint


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_same_seed_gives_the_same_run_in_every_process(hash_seed: str) -> None:
    program = """
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("messy_network", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        sys.modules["messy_network"] = module
        spec.loader.exec_module(module)
        print(module.messy(3)[1])
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), __file__],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(answer.stdout) == messy(3)[1]


def test_messages_are_traced_as_short_text() -> None:
    @dataclass
    class Seal:
        epoch: int
        blob: bytes
        tags: frozenset[str]

    class Plain:
        pass

    assert brief(None) == ""
    assert (
        brief(Seal(4, b"123", frozenset({"b", "a"}))) == "Seal(4, <3 bytes>, frozenset({'a', 'b'}))"
    )
    assert "0x" not in brief(Plain())
    assert brief(ROWS) == "<10 rows>"
    assert len(brief([["x" * 1000] * 10] * 10)) <= 100
