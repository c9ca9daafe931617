"""How much of everything a comparison takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks import windows
from benchmarks.word_count import WordCount
from benchmarks.workloads.catalog import Rows


@dataclass(frozen=True, kw_only=True)
class Size:
    """The inputs, how often they are run, and how long the paced input lasts in seconds.

    ``everyone``: whether engines run, too, that no goal names.
    """

    everyone: bool
    one: WordCount
    five: WordCount
    small: WordCount
    tiny: WordCount
    keys: Mapping[str, WordCount]
    skews: Mapping[str, WordCount]
    curve: WordCount
    epoch_sizes: Sequence[WordCount]
    least: WordCount
    trades: windows.Size
    rows: Rows
    wide: Rows
    slow_epochs: int
    rounds: int
    warm: float
    seconds: float
    paced: float
    settling: float


_TINY = 10_000  # words, in 1,000 rows
_LEAST = 20  # words, in a row for each file


def _keys(epochs: int, *numbers: int) -> dict[str, WordCount]:
    """Words that are all equally frequent: every epoch touches as many keys as it can."""
    words = {n: WordCount(epochs=epochs, words_per_epoch=1_000_000, keys=n) for n in numbers}
    return {f"{n // 1000}k": replace(size, exponent=0.0) for n, size in words.items()}


def _epochs(words: int, *sizes: int) -> list[WordCount]:
    """Epochs of these sizes, at least six of them, and so many words if there are more."""
    return [WordCount(epochs=max(6, words // size), words_per_epoch=size) for size in sizes]


def _skews(epochs: int, words: int, *exponents: float) -> dict[str, WordCount]:
    return {
        f"{exponent:g}": WordCount(epochs=epochs, words_per_epoch=words, exponent=exponent)
        for exponent in exponents
    }


FULL = Size(
    everyone=True,
    one=WordCount(epochs=30, words_per_epoch=1_000_000),
    five=WordCount(epochs=12, words_per_epoch=5_000_000),
    small=WordCount(epochs=3, words_per_epoch=1_000_000),
    tiny=WordCount(epochs=60, words_per_epoch=_TINY),
    keys=_keys(24, 1_000, 100_000, 10_000_000),
    skews=_skews(16, 1_000_000, 0, 0.5, 1, 1.5, 2),
    curve=WordCount(epochs=12, words_per_epoch=1_000_000),
    epoch_sizes=_epochs(1_000_000, 10_000, 100_000, 1_000_000, 5_000_000),
    least=WordCount(epochs=60, words_per_epoch=_LEAST),
    trades=replace(windows.FULL, speeds=(1,)),
    rows=Rows(epochs=16, rows_per_epoch=500_000),
    wide=Rows(epochs=16, rows_per_epoch=50_000),
    slow_epochs=4,
    rounds=5,
    warm=30.0,
    seconds=1800.0,
    paced=60.0,
    settling=20.0,
)
QUICK = Size(
    everyone=False,
    one=WordCount(epochs=10, words_per_epoch=1_000_000),
    five=WordCount(epochs=4, words_per_epoch=5_000_000),
    small=WordCount(epochs=3, words_per_epoch=50_000),
    tiny=WordCount(epochs=30, words_per_epoch=_TINY),
    keys=_keys(6, 100_000, 1_000_000),
    skews=_skews(6, 1_000_000, 0, 2),
    curve=WordCount(epochs=6, words_per_epoch=500_000),
    epoch_sizes=_epochs(200_000, 10_000, 100_000),
    least=WordCount(epochs=20, words_per_epoch=_LEAST),
    trades=replace(windows.QUICK, epochs=6, rounds=2),
    rows=Rows(epochs=8, rows_per_epoch=200_000),
    wide=Rows(epochs=8, rows_per_epoch=20_000),
    slow_epochs=3,
    rounds=2,
    warm=8.0,
    seconds=120.0,
    paced=15.0,
    settling=10.0,
)
SMOKE = Size(
    everyone=True,
    one=WordCount(epochs=4, words_per_epoch=50_000),
    five=WordCount(epochs=4, words_per_epoch=100_000),
    small=WordCount(epochs=3, words_per_epoch=2_000),
    tiny=WordCount(epochs=4, words_per_epoch=_TINY),
    keys={
        "2k": WordCount(epochs=4, words_per_epoch=20_000, keys=2_000),
        "20k": WordCount(epochs=4, words_per_epoch=20_000, keys=20_000),
    },
    skews=_skews(4, 20_000, 0, 2),
    curve=WordCount(epochs=4, words_per_epoch=20_000),
    epoch_sizes=_epochs(20_000, 10_000),
    least=WordCount(epochs=4, words_per_epoch=_LEAST),
    trades=windows.QUICK,
    rows=Rows(epochs=4, rows_per_epoch=4_000),
    wide=Rows(epochs=4, rows_per_epoch=1_000),
    slow_epochs=3,
    rounds=1,
    warm=0.0,
    seconds=60.0,
    paced=4.0,
    settling=2.0,
)
