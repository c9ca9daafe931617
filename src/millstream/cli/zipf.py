"""Text whose words follow Zipf's law, made from a seed: input for the demo and the benchmarks.

A word of rank r comes with a weight of r ** -exponent. Every file is drawn from its own seed,
so that the first files of a longer text are the files of a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import ConfigError

_SYLLABLES = ["".join(letters) for letters in product("bdgklmt", "aeiou", "nr")]


@dataclass(frozen=True, kw_only=True)
class ZipfText:
    """A text: how many words, of which kind, in which files."""

    words: int
    distinct: int = 100_000
    exponent: float = 1.1
    words_per_line: int = 10
    lines_per_file: int = 50_000
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("words", "distinct", "words_per_line", "lines_per_file"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def files(self) -> int:
        """How many files the text fills; the last may be shorter."""
        return -(-self.words // (self.words_per_line * self.lines_per_file))

    def write(self, folder: Path) -> int:
        """Write the files into a new folder; return the number of bytes."""
        folder.mkdir(parents=True)
        sums = np.cumsum(np.arange(1, self.distinct + 1, dtype=float) ** -self.exponent)
        tokens = _tokens(self.distinct)
        size = 0
        for number in range(self.files):
            text = self._text(number, sums, tokens)
            # Under its final name only when complete: a stream may already watch the folder.
            hidden = folder / f".{number:06}.txt"
            hidden.write_bytes(text)
            hidden.rename(folder / f"{number:06}.txt")
            size += text.size
        return size

    def _text(self, number: int, sums: npt.NDArray[np.float64], tokens: pa.Array) -> pa.Buffer:
        full = self.words_per_line * self.lines_per_file
        count = min(full, self.words - number * full)
        draws = np.random.default_rng([self.seed, number]).random(count) * sums[-1]
        ranks = np.minimum(np.searchsorted(sums, draws, side="right"), self.distinct - 1)
        ranks[self.words_per_line - 1 :: self.words_per_line] += self.distinct
        ranks[-1] = ranks[-1] % self.distinct + self.distinct
        taken = tokens.take(pa.array(ranks))
        # An array of strings has them concatenated in one buffer, which is the text.
        offsets = np.frombuffer(taken.buffers()[1], np.int32)
        return taken.buffers()[2].slice(0, int(offsets[count]))


def words_of(distinct: int) -> list[str]:
    """The words by rank: frequent ones have one syllable, rare ones three or more."""
    words: list[str] = []
    longest = [""]
    while len(words) < distinct:
        longest = [start + syllable for start in longest for syllable in _SYLLABLES]
        words.extend(longest)
    return words[:distinct]


def _tokens(distinct: int) -> pa.Array:
    """Every word with the blank, then every word with the line end that may follow it."""
    words = words_of(distinct)
    return pa.array([f"{word} " for word in words] + [f"{word}\n" for word in words])
