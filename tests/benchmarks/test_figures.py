"""Figures come from warm epochs, or from what a long run takes more than a short one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.data import Text
from benchmarks.figures import (
    Figure,
    Sample,
    TooShortError,
    by_difference,
    by_epochs,
    of_whole,
)
from benchmarks.peers.peer import Run
from benchmarks.peers.protocol import Ran
from benchmarks.process_tree import Usage


def run_of(seconds: float, *ends: float, cpu: float = 1.0) -> Run:
    return Run(Ran(seconds=seconds, ends=list(ends)), Usage(cpu, 1000, 0.5))


def text_of(epochs: int, words: int) -> Text:
    return Text(Path(), epochs, words // 10, words)


def test_only_the_second_half_of_the_epochs_counts() -> None:
    sample = by_epochs(run_of(99.0, 10.0, 20.0, 21.0, 22.0), text_of(4, 500))

    assert sample.epochs == [1000.0, 1000.0]
    assert sample.rate == 500


def test_what_it_costs_to_start_is_taken_out() -> None:
    sample = by_difference(run_of(7.0, cpu=8.0), run_of(3.0, cpu=2.0), 2_000_000)

    assert sample.rate == 500_000
    assert sample.cpu_per_million == 3.0


def test_a_long_run_that_is_not_longer_is_no_measurement() -> None:
    with pytest.raises(TooShortError, match="more input"):
        by_difference(run_of(3.0), run_of(3.0), 10)


def test_a_batch_query_counts_as_a_whole() -> None:
    assert of_whole(run_of(2.0), text_of(4, 500)).rate == 1000


def test_rounds_give_a_median_and_a_spread() -> None:
    figure = Figure([Sample(rate, 1.0, 10, 0.0, [rate / 10]) for rate in (100.0, 90.0, 130.0)])

    assert figure.rate == 100
    assert figure.spread == pytest.approx(0.4)
    assert figure.epoch_ms == 10


def test_the_memory_of_a_key_is_what_nodes_gained_for_it() -> None:
    facts = {
        "first_node_bytes": 1000.0,
        "first_keys": 10.0,
        "last_node_bytes": 3000.0,
        "last_keys": 30.0,
    }
    figure = Figure([Sample(1.0, 1.0, 10, 0.0, (), facts)])

    assert figure.node_bytes_per_key == 100
