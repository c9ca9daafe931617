"""The input of the benchmarks: Zipf text in files, cut so that an epoch is two files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.cli.zipf import ZipfText

FILES_PER_EPOCH = 2


@dataclass(frozen=True)
class Text:
    """A folder of text, in epochs of the same size."""

    folder: Path
    epochs: int
    lines_per_epoch: int
    words_per_epoch: int

    @property
    def words(self) -> int:
        return self.epochs * self.words_per_epoch


def write_text(
    folder: Path,
    *,
    epochs: int,
    words_per_epoch: int,
    keys: int = 100_000,
    exponent: float = 1.1,
) -> Text:
    """Write the text; a text of fewer epochs is a prefix of a longer one."""
    words_per_line = 10
    lines = words_per_epoch // words_per_line
    if lines * words_per_line != words_per_epoch or lines % FILES_PER_EPOCH:
        raise ValueError(f"an epoch of {words_per_epoch} words is not {FILES_PER_EPOCH} files")
    ZipfText(
        words=epochs * words_per_epoch,
        distinct=keys,
        exponent=exponent,
        words_per_line=words_per_line,
        lines_per_file=lines // FILES_PER_EPOCH,
    ).write(folder)
    return Text(folder, epochs, lines, words_per_epoch)
