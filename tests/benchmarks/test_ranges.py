"""The counts of ranges of keys are known for every epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.ranges import FILES_PER_EPOCH, Input, expand, write_input

KEYS, EPOCHS = 1_500, 6


@pytest.fixture
def given(tmp_path: Path) -> Input:
    return write_input(tmp_path / "in", keys=KEYS, epochs=EPOCHS)


def epochs_of(given: Input) -> list[list[tuple[int, int]]]:
    files = sorted(given.folder.iterdir(), key=lambda file: file.stat().st_mtime)
    assert len(files) == FILES_PER_EPOCH * (given.loads + EPOCHS)
    pairs = [
        [pair for line in file.read_text().splitlines() for pair in expand(line)] for file in files
    ]
    return [first + second for first, second in zip(pairs[::2], pairs[1::2], strict=True)]


def test_counts_are_as_expected_in_every_epoch(given: Input) -> None:
    counts: Counter[int] = Counter()
    for epoch, pairs in enumerate(epochs_of(given)):
        counts.update(key for key, _ in pairs)
        if epoch < given.loads:
            assert not any(shown for _, shown in pairs)
            continue

        shown = [counts[key] for key, _ in pairs]

        assert all(shown for _, shown in pairs)
        assert given.is_right(epoch, shown)
        assert not given.is_right(epoch, shown[1:])
        assert not given.is_right(epoch, [*shown[1:], shown[0] + 1])
        assert all(given.count_after(epoch, key) == counts[key] for key in range(KEYS))


def test_the_loads_have_every_key_once(given: Input) -> None:
    loaded = [key for pairs in epochs_of(given)[: given.loads] for key, _ in pairs]

    assert sorted(loaded) == list(range(KEYS))
