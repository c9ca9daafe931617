from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.argument_types import number, seconds, slots, slots_text

RUNS = st.lists(
    st.tuples(st.integers(0, 99_999), st.integers(1, 5000)).map(lambda t: range(t[0], sum(t))),
    min_size=1,
).map(tuple)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("7", (range(7, 8),)),
        ("0-511,700", (range(512), range(700, 701))),
        (" 3-3 , 1 ", (range(3, 4), range(1, 2))),
    ],
)
def test_slots_are_numbers_and_runs(text: str, runs: tuple[range, ...]) -> None:
    assert slots(text) == runs


@given(RUNS)
def test_slots_are_parsed_as_they_are_printed(runs: tuple[range, ...]) -> None:
    assert slots(slots_text(runs)) == runs


def test_empty_runs_are_not_printed() -> None:
    assert slots_text([range(3, 3), range(4, 6)]) == "4-5"


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "1-", "-1", "1--2", "1.5", "5-3", "0x1", "٣"])
def test_other_texts_are_no_slots(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        slots(text)


def test_numbers_may_have_separators() -> None:
    assert number("1_000") == number("1,000") == 1000


@pytest.mark.parametrize("text", ["-1", "nan", "inf"])
def test_seconds_are_finite_and_not_negative(text: str) -> None:
    assert seconds("1.5") == 1.5
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)
