from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import pytest

from millstream.errors import ConfigError
from millstream.sim import Crashed, Faults, StalledError, World
from millstream.sim.promises import Promise
from millstream.wire.net import Net
from tests.wire.requests import Sent

NEVER = 1e6
Lock = AbstractContextManager[Any]


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


def forever(net: Net) -> Callable[[], None]:
    def loop() -> None:
        while True:
            net.sleep(1)

    return loop


def test_time_passes_only_while_everybody_waits(world: World) -> None:
    net = world.process("driver")

    def main() -> float:
        before = net.now()
        sum(range(100_000))
        assert net.now() == before
        net.sleep(3600)
        return net.now() - before

    assert world.run(main, "driver", until=NEVER) == pytest.approx(3600, abs=0.01)


def test_run_returns_the_result_of_main_or_raises_its_error(world: World) -> None:
    world.process("driver")
    assert world.run(lambda: 42, "driver", until=1) == 42

    def main() -> NoReturn:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        world.run(main, "driver", until=1)


def test_background_tasks_continue_in_the_next_run(world: World) -> None:
    net = world.process("driver")
    ticks: list[float] = []

    def tick() -> None:
        while True:
            net.sleep(1)
            ticks.append(net.now())

    net.spawn(tick, "ticker")
    world.run(lambda: net.sleep(3.5), "driver", until=NEVER)
    assert len(ticks) == 3
    world.run(lambda: net.sleep(3), "driver", until=NEVER)
    assert len(ticks) == 6


def test_gathered_calls_run_concurrently(world: World) -> None:
    net = world.process("driver")

    def wait(seconds: float) -> float:
        net.sleep(seconds)
        return seconds

    def fail() -> NoReturn:
        net.sleep(1)
        raise ConfigError("no")

    def main() -> list[float | Exception]:
        return net.gather([lambda: wait(3), fail, lambda: wait(2)])

    three, error, two = world.run(main, "driver", until=NEVER)
    assert (three, two) == (3, 2)
    assert isinstance(error, ConfigError)
    assert world.now == pytest.approx(3, abs=0.01)
    assert world.run(lambda: net.gather([]), "driver", until=NEVER) == []


def test_the_seed_decides_which_task_runs_first() -> None:
    def order(seed: int) -> list[int]:
        with World(seed) as world:
            net, seen = world.process("driver"), list[int]()
            calls = [lambda n=n: seen.append(n) for n in range(5)]
            world.run(lambda: net.gather(calls), "driver", until=1)
            return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_a_lock_excludes_and_is_reentrant(world: World) -> None:
    net = world.process("driver")
    lock = net.lock()
    inside = 0

    def work() -> None:
        nonlocal inside
        for _ in range(20):
            with lock:
                with lock:
                    assert inside == 0
                    inside += 1
                    net.sleep(0.01)
                inside -= 1

    def main() -> None:
        assert net.gather([work] * 5) == [None] * 5

    world.run(main, "driver", until=NEVER)
    assert world.now > 1


def test_without_a_lock_tasks_interleave(world: World) -> None:
    net = world.process("driver")
    lock, seen = net.lock(), list[int]()

    def work(number: int) -> None:
        for _ in range(10):
            with lock:
                seen.append(number)

    world.run(lambda: net.gather([lambda: work(1), lambda: work(2)]), "driver", until=1)
    assert sorted(seen) != seen
    assert sorted(seen, reverse=True) != seen


def test_at_rest_a_lock_may_be_taken_from_outside_if_it_is_free(world: World) -> None:
    net = world.process("driver")
    lock = net.lock()
    with lock, lock:
        pass

    def hold() -> None:
        with lock:
            net.sleep(10)

    net.spawn(hold, "holder")
    world.run(lambda: net.sleep(1), "driver", until=NEVER)
    with pytest.raises(RuntimeError, match="driver/holder holds this lock"):
        with lock:
            pass


def test_a_deadlock_is_reported(world: World) -> None:
    net = world.process("driver")
    one, two = net.lock(), net.lock()

    def both(first: Lock, second: Lock) -> None:
        with first:
            net.sleep(1)
            with second:
                pass

    def main() -> None:
        net.gather([lambda: both(one, two), lambda: both(two, one)])

    with pytest.raises(StalledError) as stalled:
        world.run(main, "driver", until=NEVER)
    text = str(stalled.value)
    assert "nothing can happen any more" in text
    assert "driver/main waits for 2 gathered calls" in text
    assert "driver/main.0 waits for a lock that driver/main.1 holds" in text
    assert "driver/main.1 waits for a lock that driver/main.0 holds" in text


def test_a_run_that_takes_too_long_is_stalled(world: World) -> None:
    net = world.process("driver")
    world.note("something odd")
    with pytest.raises(StalledError, match=r"(?s)t=60.000 is over.*driver/main waits 1 s.*odd"):
        world.run(forever(net), "driver", until=60)
    assert world.now <= 60


def test_a_stalled_task_continues_in_the_next_run_and_does_not_end_it(world: World) -> None:
    net = world.process("driver")
    with pytest.raises(StalledError):
        world.run(lambda: net.sleep(100), "driver", until=60)
    world.run(lambda: net.sleep(100), "driver", until=NEVER)
    assert world.now == pytest.approx(160, abs=0.01)


def test_a_bug_of_a_background_task_stops_the_world(world: World) -> None:
    net = world.process("driver")

    def bug() -> NoReturn:
        net.sleep(1)
        raise ZeroDivisionError("a bug")

    net.spawn(bug, "buggy")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        world.run(forever(net), "driver", until=NEVER)
    assert world.now == pytest.approx(1, abs=0.01)


def test_a_bug_of_the_scenario_stops_the_world(world: World) -> None:
    net = world.process("driver")

    def swallow() -> None:
        try:
            net.sleep(1)
        except AssertionError:
            pytest.fail("not for the tasks")

    def check(process: str, what: str) -> None:
        raise AssertionError(f"{process}: {what}")

    world.on_step = check
    with pytest.raises(AssertionError, match="driver: sleep 1"):
        world.run(swallow, "driver", until=NEVER)

    world.on_step = None
    world.at(1, lambda: check("nobody", "at"))
    with pytest.raises(AssertionError, match="nobody: at"):
        world.run(forever(net), "driver", until=NEVER)


def test_a_crash_unwinds_the_tasks_where_they_wait(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")
    lock, seen = node.lock(), list[str]()

    def work() -> None:
        try:
            with lock:
                try:
                    node.sleep(10)
                finally:
                    with pytest.raises(Crashed):
                        with lock:
                            seen.append("entered again")
        finally:
            seen.append("unwound")
            for primitive in (
                lambda: node.sleep(1),
                lambda: node.call("x", Sent("y")),
                lambda: node.gather([]),
                lambda: node.spawn(work, "again"),
                node.lock,
                node.now,
                lock.__enter__,
            ):
                with pytest.raises(Crashed):
                    primitive()
            seen.append("all refused")

    def others() -> None:
        node.gather([work, work])
        seen.append("not reached")

    node.spawn(others, "others")

    def main() -> None:
        driver.sleep(1)
        assert world.alive("node")
        world.at(0, lambda: seen.append("the next event"))
        node.spawn(lambda: seen.append("not started"), "late")
        world.crash("node")
        assert not world.alive("node")
        driver.sleep(100)

    world.run(main, "driver", until=NEVER)
    assert seen == [*["unwound", "all refused"] * 2, "the next event"]


def test_errors_of_a_dying_task_are_ignored(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")

    def work() -> None:
        try:
            node.sleep(10)
        finally:
            raise ZeroDivisionError

    node.spawn(work, "work")
    world.at(1, lambda: world.crash("node"))
    world.run(lambda: driver.sleep(20), "driver", until=NEVER)


def test_a_process_may_crash_at_its_own_step(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")
    steps: list[tuple[str, str]] = []
    reached: list[int] = []

    def work() -> None:
        for number in range(10):
            reached.append(number)
            node.sleep(1 + number)

    def on_step(process: str, what: str) -> None:
        steps.append((process, what))
        if (process, what) == ("node", "sleep 3"):
            world.crash("node")

    world.on_step = on_step
    node.spawn(work, "work")
    world.run(lambda: driver.sleep(100), "driver", until=NEVER)
    assert reached == [0, 1, 2]
    assert [what for process, what in steps if process == "node"] == [
        "sleep 1",
        "sleep 2",
        "sleep 3",
    ]


def test_a_crash_of_the_main_process_ends_the_run(world: World) -> None:
    net = world.process("driver")
    world.at(5, lambda: world.crash("driver"))
    with pytest.raises(Crashed):
        world.run(forever(net), "driver", until=NEVER)
    # A new process of the name may start, and what is left of the old one is not its.
    again = world.process("driver")
    assert world.run(lambda: again.sleep(1), "driver", until=NEVER) is None
    with pytest.raises(ValueError, match="already"):
        world.process("driver")


def test_nothing_of_a_paused_process_runs(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")
    ticks: list[float] = []

    def tick() -> None:
        while True:
            node.sleep(1)
            ticks.append(node.now())

    def main() -> None:
        driver.sleep(2.5)
        world.pause("node")
        node.spawn(lambda: ticks.append(-1), "late")
        driver.sleep(10)
        assert len(ticks) == 2
        world.resume("node")
        driver.sleep(2.1)

    node.spawn(tick, "ticker")
    world.run(main, "driver", until=NEVER)
    assert sorted(ticks) == pytest.approx([-1, 1, 2, 12.5, 13.5, 14.5], abs=0.05)


def test_a_process_may_pause_at_its_own_step(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")
    done: list[float] = []

    def on_step(process: str, what: str) -> None:
        if process == "node" and not done:
            world.pause("node")

    def work() -> None:
        node.spawn(lambda: None, "child")
        done.append(node.now())

    world.on_step = on_step
    node.spawn(work, "work")
    world.at(5, lambda: world.resume("node"))
    world.run(lambda: driver.sleep(10), "driver", until=NEVER)
    assert done == pytest.approx([5], abs=0.01)


def test_a_paused_process_can_crash(world: World) -> None:
    driver, node = world.process("driver"), world.process("node")
    unwound: list[bool] = []

    def work() -> None:
        try:
            node.sleep(1)
        finally:
            unwound.append(True)

    node.spawn(work, "work")
    world.at(0.5, lambda: world.pause("node"))
    world.at(2, lambda: world.crash("node"))
    world.run(lambda: driver.sleep(3), "driver", until=NEVER)
    assert unwound == [True]
    world.resume("node")
    world.pause("node")
    world.crash("node")


def test_steps_may_stall(world: World) -> None:
    net = world.process("driver")
    world.faults = Faults(stall=1.0)

    def main() -> None:
        for _ in range(10):
            net.spawn(lambda: None, "child")

    world.run(main, "driver", until=NEVER)
    assert world.now > 10


def test_primitives_belong_to_the_tasks_of_their_process(world: World) -> None:
    world.process("driver")
    node = world.process("node")
    with pytest.raises(RuntimeError, match="a primitive of node, used by driver/main"):
        world.run(lambda: node.sleep(1), "driver", until=1)
    with pytest.raises(RuntimeError, match="used by no task"):
        node.sleep(1)
    with pytest.raises(ValueError, match="no process nobody is alive"):
        world.run(lambda: None, "nobody", until=1)


def test_the_story_is_bounded_and_the_fingerprint_is_not() -> None:
    with World(seed=1, trace_limit=3) as world:
        for number in range(5):
            world.note(f"note {number}")
        assert world.trace == ["t=0.000 note 2", "t=0.000 note 3", "t=0.000 note 4"]
        assert world.story(last=1) == "t=0.000 note 4"
        with World(seed=1, trace_limit=3) as other:
            for number in range(2, 5):
                other.note(f"note {number}")
            assert other.trace == world.trace
            assert other.fingerprint != world.fingerprint


def test_no_threads_are_left() -> None:
    before = threading.active_count()
    unwound: list[int] = []
    for seed in range(3):
        with World(seed) as world:
            net = world.process("driver")
            lock = net.lock()

            def work(net: Net = net, lock: Lock = lock) -> None:
                try:
                    with lock:
                        net.sleep(100)
                finally:
                    unwound.append(1)

            for number in range(20):
                net.spawn(work, f"work {number}")
            if seed == 1:
                with pytest.raises(StalledError):
                    world.run(forever(net), "driver", until=250)
            elif seed == 2:
                world.run(lambda net=net: net.sleep(1), "driver", until=250)  # type: ignore[misc]
        world.close()
        assert threading.active_count() == before
    assert len(unwound) == 40


def test_threads_are_used_again(world: World) -> None:
    net = world.process("driver")
    before = threading.active_count()

    def main() -> int:
        for _ in range(200):
            net.gather([lambda: net.sleep(0.1)] * 5)
        return threading.active_count() - before

    assert world.run(main, "driver", until=NEVER) <= 6


def test_a_task_that_blocks_in_real_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.sim.kernel._PATIENCE", 0.05)
    world, real = World(seed=1), threading.Lock()
    world.process("driver")
    before = threading.active_count()
    with real:
        with pytest.raises(StalledError, match=r"(?s)driver/main never waits.*real\.acquire"):
            world.run(lambda: real.acquire(), "driver", until=1)
    world.close()
    assert threading.active_count() == before


def test_each_step_lists_the_processes_that_ran_since_the_last() -> None:
    with World(1) as world:
        one, other = world.process("one"), world.process("other")
        seen: list[tuple[str, set[str]]] = []
        woken: Promise[None] = Promise(world)

        def wait() -> None:
            woken.wait("to be woken")  # and it ends without another step

        def main() -> None:
            other.spawn(wait, "waits")
            one.sleep(1.0)
            world.on_step = lambda process, what: seen.append((process, set(world.ran)))
            one.sleep(1.0)
            woken.resolve(None)
            one.sleep(1.0)
            one.sleep(1.0)

        world.run(main, "one", 10.0)
        assert seen[1:] == [("one", {"one"}), ("one", {"one", "other"})]
