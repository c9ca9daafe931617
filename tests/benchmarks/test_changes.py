"""What a change of parallelism disturbs is told from the times of outputs and epochs."""

from __future__ import annotations

import pytest

from benchmarks.changes import Change

STEADY = [float(at) for at in range(10)]


def test_a_change_that_disturbs_nothing_has_no_gap() -> None:
    change = Change(called=5.5, done=7.0, outputs=STEADY)

    assert change.gap == pytest.approx(0.001)


def test_the_gap_is_what_the_longest_pause_after_the_call_has_too_much() -> None:
    pause_before = [0.0, 1.0, 2.0, 7.0, 8.0, 9.0, 10.0]
    change = Change(called=10.5, done=11.0, outputs=[*pause_before, 11.0, 14.0, 15.0])

    assert change.usual == 1.0
    assert change.gap == pytest.approx(2.0)


def test_a_pause_that_begins_before_the_call_counts() -> None:
    change = Change(called=9.5, done=10.0, outputs=[*STEADY, 13.0, 14.0])

    assert change.gap == pytest.approx(3.0)


def test_epochs_are_before_a_change_or_overlap_it() -> None:
    epochs = [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3), (4.0, 0.4), (5.0, 0.5), (6.0, 0.6)]
    change = Change(called=2.9, done=4.6, outputs=STEADY, epochs=epochs)

    assert change.before == [0.1, 0.2]
    assert change.during == [0.3, 0.4, 0.5]
