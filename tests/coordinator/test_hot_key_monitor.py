from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.hot_key_monitor import HotKeyMonitor
from millstream.wire.load_report import ReportedKey


def key(text: str, tuples: int, slot: int = 0) -> ReportedKey:
    return ReportedKey(text, slot, tuples)


def test_a_key_is_shown_with_its_share_of_all_nodes_tuples() -> None:
    monitor = HotKeyMonitor(decay=0.5, least=0.05)

    monitor.add(1_000.0, [key("'a'", 300, slot=7), key("'b'", 40), key("'c'", 100)])

    assert [(text, slot) for text, slot, _ in monitor.hottest()] == [("'a'", 7), ("'c'", 0)]
    assert [share for *_, share in monitor.hottest()] == pytest.approx([0.3, 0.1])


def test_equal_texts_in_different_slots_are_different_keys() -> None:
    monitor = HotKeyMonitor(decay=0.5, least=0.05)

    monitor.add(100.0, [key("xx...yy", 30, slot=1), key("xx...yy", 20, slot=2)])

    assert [slot for _, slot, _ in monitor.hottest()] == [1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=20),
    st.floats(0.3, 0.9),
)
def test_shares_are_weighted_by_age(epochs: list[tuple[int, int]], decay: float) -> None:
    monitor = HotKeyMonitor(decay, least=1e-9)
    for hot, rest in epochs:
        monitor.add(float(hot + rest), [key("'a'", hot)] if hot else [])

    weights = [decay**age for age in reversed(range(len(epochs)))]
    tuples = sum(weight * (hot + rest) for weight, (hot, rest) in zip(weights, epochs, strict=True))
    expected = sum(weight * hot for weight, (hot, _) in zip(weights, epochs, strict=True)) / tuples
    shares = {text: share for text, _, share in monitor.hottest()}
    assert shares.get("'a'", 0.0) == pytest.approx(expected, abs=0.01)


def test_a_key_that_is_hot_no_longer_disappears() -> None:
    monitor = HotKeyMonitor(decay=0.7, least=0.05)
    monitor.add(100.0, [key("'a'", 90)])
    for _ in range(10):
        monitor.add(100.0, [])

    assert monitor.hottest() == []


def test_keys_that_are_large_on_one_of_many_nodes_only_are_left_out() -> None:
    monitor = HotKeyMonitor(decay=0.7, least=0.05)
    local = [key(f"{node}", 10, slot=node) for node in range(1_000)]

    monitor.add(100_000.0, [*local, key("'a'", 20_000)])

    [(text, _, share)] = monitor.hottest()
    assert text == "'a'" and share == pytest.approx(0.2)


def test_a_job_without_tuples_has_no_hot_keys() -> None:
    monitor = HotKeyMonitor(decay=0.7, least=0.05)

    monitor.add(0.0, [])

    assert monitor.hottest() == []
