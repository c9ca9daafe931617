from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.load_averages import NamedAverages, NodeAverages, SlotAverages
from millstream.ring.ring import NodeId

VALUES = st.floats(0.0, 1e6)
DECAYS = st.floats(0.01, 0.99)


def average(values: list[float], decay: float) -> float:
    """The definition: the weight of a value falls by the decay with every newer one."""
    weights = [decay**age for age in reversed(range(len(values)))]
    return sum(map(lambda w, v: w * v, weights, values)) / sum(weights)


@given(values=st.lists(VALUES, min_size=1, max_size=20), decay=DECAYS)
def test_each_average_is_weighted_by_age(values: list[float], decay: float) -> None:
    slots, nodes = SlotAverages(1, 3, decay), NodeAverages(1, decay)
    named: NamedAverages[str] = NamedAverages(decay)
    row: Any = None
    for value in values:
        slots.add(np.array([1]), [np.array([value])])
        row = nodes.add([NodeId("a")], np.array([[value]]))
        named.add({"a": value})

    expected = pytest.approx(average(values, decay), abs=1e-6)
    assert slots.values[0, 1] == expected
    assert row[0, 0] == expected
    assert named.values["a"] == expected


@given(epochs=st.lists(st.dictionaries(st.integers(0, 5), VALUES), max_size=12), decay=DECAYS)
def test_a_slot_without_a_report_keeps_its_average(
    epochs: list[dict[int, float]], decay: float
) -> None:
    averages = SlotAverages(2, 6, decay)
    for reported in epochs:
        values = np.array(list(reported.values()))
        averages.add(np.array(list(reported), np.int64), [values, 2 * values])

    for slot in range(6):
        seen = [reported[slot] for reported in epochs if slot in reported]
        expected = average(seen, decay) if seen else 0.0
        assert averages.values[0, slot] == pytest.approx(expected, abs=1e-6)
        assert averages.values[1, slot] == pytest.approx(2 * expected, abs=1e-6)


def test_a_value_is_half_forgotten_after_its_half_life() -> None:
    averages = SlotAverages(1, 1, decay=0.5 ** (1 / 4))
    for _ in range(100):
        averages.add(np.array([0]), [np.array([8.0])])
    for _ in range(4):
        averages.add(np.array([0]), [np.array([0.0])])

    assert averages.values[0, 0] == pytest.approx(4.0)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), max_size=10))
def test_a_node_counts_from_when_it_joined_last(epochs: list[dict[str, float]]) -> None:
    averages = NodeAverages(1, 0.7)
    stays: dict[str, list[float]] = {}
    for reported in epochs:
        stays = {node: [*stays.get(node, []), value] for node, value in reported.items()}

        found = averages.add(
            [NodeId(node) for node in reported],
            np.array(list(reported.values())).reshape(len(reported), 1),
        )

        for at, node in enumerate(reported):
            assert found[at, 0] == pytest.approx(average(stays[node], 0.7), abs=1e-6)


def test_a_name_that_is_left_out_is_zero() -> None:
    averages: NamedAverages[str] = NamedAverages(0.5)
    averages.add({"a": 3.0})
    averages.add({"b": 6.0})

    assert averages.values == {"a": pytest.approx(1.0), "b": pytest.approx(4.0)}
