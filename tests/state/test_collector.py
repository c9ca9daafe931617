from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from millstream.state.collector import ManualCollector, without_collector


def test_the_collector_rests_until_the_last_caller_is_done() -> None:
    assert gc.isenabled()
    with without_collector():
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_wakes_the_collector_too() -> None:
    with pytest.raises(ValueError), without_collector():
        raise ValueError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


class Node:
    """Something that can be part of a cycle."""

    other: Node


@pytest.fixture
def collector() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()
    gc.enable()
    gc.collect()


def cycle() -> weakref.ref[Node]:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_garbage_cycles_are_freed_after_an_epoch(collector: None) -> None:
    tidy = ManualCollector()
    garbage = cycle()

    tidy(10, lambda: 10)

    assert garbage() is None


def test_state_that_has_grown_is_never_walked(collector: None) -> None:
    tidy = ManualCollector(many=1_000)
    state = {number: [number] for number in range(2_000)}

    looked: list[str] = []
    gc.callbacks.append(lambda phase, info: looked.append(phase))
    try:
        tidy(2_000, lambda: 2_000)
        assert looked == []
        tidy(2_000, lambda: 2_000)  # the same keys again: there is nothing new to walk
        assert looked == ["start", "stop"]
    finally:
        gc.callbacks.pop()
    assert gc.get_freeze_count() > 2_000
    assert len(state) == 2_000


def test_many_new_objects_are_not_walked(collector: None) -> None:
    tidy = ManualCollector(many=1_000)
    state = [[number] for number in range(2_000)]

    looked: list[str] = []
    gc.callbacks.append(lambda phase, info: looked.append(phase))
    try:
        tidy(1, lambda: 1)
    finally:
        gc.callbacks.pop()
    assert looked == []
    assert len(state) == 2_000


def test_calls_in_quick_succession_do_not_collect_each_time(collector: None) -> None:
    now = [100.0]
    tidy = ManualCollector(clock=lambda: now[0])
    tidy(10, lambda: 10)
    garbage = cycle()

    now[0] += 0.1
    tidy(10, lambda: 10)
    assert garbage() is not None
    now[0] += 0.2
    tidy(10, lambda: 10)

    assert garbage() is None


def test_many_new_objects_are_collected_at_once(collector: None) -> None:
    tidy = ManualCollector(many=2_000, clock=lambda: 100.0)
    tidy(10, lambda: 10)
    garbage = cycle()
    new = [[number] for number in range(1_000)]

    tidy(10, lambda: 10)

    assert garbage() is None and len(new) == 1_000
