"""The word count: the sizes of its input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import Text, write_text


@dataclass(frozen=True, kw_only=True)
class WordCount:
    """A size of the word count: words are drawn by Zipf's law with this exponent."""

    epochs: int
    words_per_epoch: int
    keys: int = 100_000
    exponent: float = 1.1

    def write(self, folder: Path) -> Text:
        """Write the input."""
        return write_text(
            folder,
            epochs=self.epochs,
            words_per_epoch=self.words_per_epoch,
            keys=self.keys,
            exponent=self.exponent,
        )
