"""The word count: its input, and its right answer, for all engines."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from benchmarks.data import FILES_PER_EPOCH, Text, write_text

_SPLIT = csv.ParseOptions(delimiter="\t", quote_char=False)
_LINES = csv.ReadOptions(column_names=["line"])
_ANSWER = csv.ReadOptions(column_names=["word", "n"])
_TYPES = csv.ConvertOptions(
    column_types={"word": pa.string(), "n": pa.int64()}, strings_can_be_null=False
)


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


def first_epochs(text: Text, epochs: int, folder: Path) -> Text:
    """A text of only the first epochs, in a folder of links to its files."""
    folder.mkdir()
    files = sorted(text.folder.glob("[!.]*"))[: epochs * FILES_PER_EPOCH]
    for file in files:
        os.link(file, folder / file.name)
    return Text(folder, epochs, text.lines_per_epoch, text.words_per_epoch)


def right_answer(text: Text) -> pa.Table:
    """How often each word comes, in the order of words."""
    counts = []
    for file in sorted(text.folder.glob("[!.]*")):
        lines = csv.read_csv(file, read_options=_LINES, parse_options=_SPLIT)["line"]
        words = pa.chunked_array(pc.list_flatten(pc.split_pattern(lines, " ")), pa.string())
        counted = words.value_counts()
        counts.append(pa.table({"word": counted.field("values"), "n": counted.field("counts")}))
    summed = pa.concat_tables(counts).group_by("word").aggregate([("n", "sum")])
    return _ordered(summed.rename_columns(["word", "n"]))


def read_answer(file: Path) -> pa.Table:
    """The answer that an engine wrote, in the order of words."""
    found = csv.read_csv(file, read_options=_ANSWER, parse_options=_SPLIT, convert_options=_TYPES)
    return _ordered(found)


def _ordered(counts: pa.Table) -> pa.Table:
    return counts.sort_by("word").combine_chunks()
