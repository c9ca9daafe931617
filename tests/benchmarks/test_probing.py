"""Pauses are found, and time in which other processes had the processors is not one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.probing import Reading, Target, pause_between, probed, processor_for
from millstream.wire.auth import new_secret
from millstream.wire.flight_net import FlightNet
from millstream.wire.serving import RunServer
from tests.wire.requests import Sent

SECRET = new_secret()
HELD = 0.1
PROBES = [(name, Sent(name)) for name in ("ping", "get")]


def serve(address: str, secret: bytes, pipe: Any) -> None:
    """A server that pauses when it is told to, in one way or another."""
    lock = threading.Lock()

    def work_with_the_interpreter() -> None:
        until = time.thread_time() + HELD
        count = 100_000
        while time.thread_time() < until:  # the last call is the long one
            started = time.thread_time()
            sum(range(count))
            count = round(count * max(1.0, HELD / (time.thread_time() - started)))

    def sleep_with_a_lock() -> None:
        with lock:
            time.sleep(HELD)

    ways = {f.__name__: f for f in (work_with_the_interpreter, sleep_with_a_lock)}
    ways["do_nothing"] = lambda: None

    def answer(request: Sent) -> None:
        if request.action == "pause":
            ways[request.body]()
        elif request.action == "get":
            with lock:
                return

    with RunServer(address, secret, answer):
        pipe.send(None)
        pipe.recv()


@pytest.fixture
def target() -> Iterator[Target]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ms-") as folder:
        address = f"grpc+unix://{Path(folder, 'server.sock')}"
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(address, SECRET, theirs), daemon=True)
        process.start()
        ours.recv()
        assert process.pid is not None
        yield Target(address, process.pid)
        ours.send(None)
        process.join()


@pytest.mark.parametrize("way", ["work_with_the_interpreter", "sleep_with_a_lock"])
def test_a_pause_of_a_server_is_found(target: Target, way: str) -> None:
    with probed([target], SECRET, PROBES) as found:
        for _ in range(5):
            FlightNet(SECRET).call(target.address, Sent("pause", way))

    [waits] = found
    assert waits.longest["get"] > 0.8 * HELD
    assert waits.longest["get"] <= waits.walls["get"]
    assert any(what == "get" for _, what, _ in waits.slow)


def test_a_server_that_does_nothing_has_no_pause(target: Target) -> None:
    with probed([target], SECRET, PROBES) as found:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            FlightNet(SECRET).call(target.address, Sent("pause", "do_nothing"))
            time.sleep(0.01)

    assert max(found[0].longest.values()) < 0.8 * HELD


def pause(*, wall: float, worked: float = 0.0, queued: float = 0.0, own: float = 0.0) -> float:
    before = Reading(0.0, 0.0, {"1": 1.0, "ended": 5.0}, {"2": 2.0, "ended": 5.0})
    after = Reading(wall, worked, {"1": 1.0, "new": queued}, {"2": 2.0 + own})
    return pause_between(before, after)


def test_time_in_line_for_a_processor_is_no_pause() -> None:
    assert pause(wall=0.1, queued=0.1) == 0
    assert pause(wall=0.1, own=0.1) == 0
    assert pause(wall=0.1, own=0.25) == 0


def test_work_is_a_pause_however_many_threads_stood_in_line_meanwhile() -> None:
    assert pause(wall=0.2, worked=0.1, queued=0.5) == 0.1
    assert pause(wall=0.1, worked=0.15, queued=0.5) == 0.1


def test_silence_without_work_is_a_pause() -> None:
    assert pause(wall=0.1) == 0.1
    assert pause(wall=0.1, own=0.02) == pytest.approx(0.08)


def test_a_server_has_a_processor_that_nobody_else_uses() -> None:
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("there is only one processor")
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        with processor_for(Target("", one.pid), [Target("", other.pid)]):
            own = os.sched_getaffinity(one.pid)
            assert len(own) == 1
            assert not own & (os.sched_getaffinity(0) | os.sched_getaffinity(other.pid))
        one.kill()
        other.kill()

    assert os.sched_getaffinity(0) == every
