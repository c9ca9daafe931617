"""Entries run in processes of their own, and only right answers count.

Those that need nothing installed stand for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.data import Text
from benchmarks.field import Field, Trial
from benchmarks.peers import entries
from benchmarks.peers.entries import BY_NAME, Engine, Entry, Speed, Timing
from benchmarks.word_count import WordCount

LOOP = BY_NAME["python_loop"]
SMALL = WordCount(epochs=2, words_per_epoch=2_000, keys=50)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with Field(tmp_path, timeout=60.0) as field:
        yield field


def test_the_right_answer_is_that_of_a_loop(field: Field, tmp_path: Path) -> None:
    text = field.text(SMALL)
    words = [word for file in text.folder.iterdir() for word in file.read_text().split()]

    answer = text.right_answer()

    assert dict(zip(*(answer[name].to_pylist() for name in ("word", "n")), strict=True)) == {
        word: words.count(word) for word in set(words)
    }


def test_entries_are_measured_in_rounds(field: Field) -> None:
    trial = Trial(given=field.text(SMALL), rounds=2, slow_epochs=1, warm=0.0, seconds=60.0)

    found = field.compare([LOOP, BY_NAME["arrow"]], trial)

    assert [len(figure.samples) for figure in found.values()] == [2, 2]
    assert all(figure.rate > 0 and figure.memory > 0 for figure in found.values())
    assert field.keys(trial.given) == 50


def test_an_engine_that_is_not_installed_is_left_out(field: Field) -> None:
    absent = Entry(
        name="absent",
        title="absent",
        engine=Engine(module="absent"),
        form="loop",
        durable="no",
        timing=Timing.WHOLE,
    )
    trial = Trial(given=field.text(SMALL), rounds=1, slow_epochs=1, warm=0.0, seconds=60.0)

    assert list(field.compare([absent, LOOP], trial)) == ["python_loop"]


def test_an_engine_that_fails_in_a_round_is_left_out(field: Field) -> None:
    trial = Trial(given=field.text(SMALL), rounds=2, slow_epochs=1, warm=0.0, seconds=60.0)
    # Its short run is its long one.
    same = replace(LOOP, name="same", timing=Timing.DIFFERENCE, speed=Speed.SLOW)

    assert list(field.compare([same, LOOP], trial)) == ["python_loop"]


def test_a_wrong_answer_ends_the_benchmark(field: Field) -> None:
    text = field.text(SMALL)
    field.run(LOOP, text)
    extra = text.folder / "999999.txt"
    extra.write_text("stowaway\n")

    with pytest.raises(SystemExit, match="wrong answer"):
        field.run(LOOP, text)


def test_the_first_epochs_of_a_text_are_a_text(field: Field) -> None:
    text = field.text(SMALL)

    first = field.prefix(text, 1)

    assert (first.epochs, first.items) == (1, 2_000)
    assert len(list(first.folder.iterdir())) == 2
    assert field.prefix(text, 1) is first
    assert field.prefix(text, 2) is text


def test_an_answer_may_contain_words_that_look_like_nothing(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("null\t2\nNA\t1\n")

    assert Text(tmp_path, 1, 1, 10).read_answer(tmp_path / "answer")["word"].to_pylist() == [
        "NA",
        "null",
    ]


def test_every_engine_with_an_environment_has_its_versions_pinned() -> None:
    folder = Path(entries.__file__).parent / "environments"
    own = {entry.engine.module for entry in BY_NAME.values() if entry.engine.own}

    assert {file.stem for file in folder.glob("*.txt")} == own
    for file in folder.glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert lines and all(line.count("==") == 1 for line in lines)


def test_names_of_entries_and_their_options_can_be_sent() -> None:
    assert len(BY_NAME) == 20
    for entry in BY_NAME.values():
        assert json.loads(json.dumps(entry.options)) == entry.options
