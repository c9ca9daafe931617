"""The inputs of the benchmarks: Zipf text in files, cut so that an epoch is two files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from millstream.cli.zipf import ZipfText

FILES_PER_EPOCH = 2
_SPLIT = csv.ParseOptions(delimiter="\t", quote_char=False)
_LINES = csv.ReadOptions(column_names=["line"])
_ANSWER = csv.ReadOptions(column_names=["word", "n"])
_TYPES = csv.ConvertOptions(
    column_types={"word": pa.string(), "n": pa.int64()}, strings_can_be_null=False
)


class Dataset(Protocol):
    """An input in epochs of one size, counted in some unit, and the right answer for it.

    ``options`` are what engines are told beside the folder.
    """

    unit: ClassVar[str]

    @property
    def folder(self) -> Path: ...

    @property
    def epochs(self) -> int: ...

    @property
    def items(self) -> int: ...

    @property
    def items_per_epoch(self) -> int: ...

    @property
    def options(self) -> Mapping[str, object]: ...

    def first_epochs(self, epochs: int, folder: Path) -> Dataset: ...

    def right_answer(self) -> pa.Table: ...

    def read_answer(self, path: Path) -> pa.Table: ...


@dataclass(frozen=True)
class Text:
    """A folder of text, in epochs of the same size."""

    unit: ClassVar[str] = "words"
    options: ClassVar[Mapping[str, object]] = {}
    folder: Path
    epochs: int
    lines_per_epoch: int
    words_per_epoch: int

    @property
    def words(self) -> int:
        return self.epochs * self.words_per_epoch

    @property
    def items(self) -> int:
        return self.words

    @property
    def items_per_epoch(self) -> int:
        return self.words_per_epoch

    def first_epochs(self, epochs: int, folder: Path) -> Text:
        """A text of only the first epochs, in a folder of links to its files."""
        folder.mkdir()
        for file in self._files()[: epochs * FILES_PER_EPOCH]:
            os.link(file, folder / file.name)
        return Text(folder, epochs, self.lines_per_epoch, self.words_per_epoch)

    def right_answer(self) -> pa.Table:
        """How often each word comes, in the order of words."""
        counts = []
        for file in self._files():
            lines = csv.read_csv(file, read_options=_LINES, parse_options=_SPLIT)["line"]
            words = pa.chunked_array(pc.list_flatten(pc.split_pattern(lines, " ")), pa.string())
            counted = words.value_counts()
            counts.append(pa.table({"word": counted.field("values"), "n": counted.field("counts")}))
        summed = pa.concat_tables(counts).group_by("word").aggregate([("n", "sum")])
        return _ordered(summed.rename_columns(["word", "n"]))

    def read_answer(self, path: Path) -> pa.Table:
        """The answer that an engine wrote, in the order of words."""
        return _ordered(
            csv.read_csv(path, read_options=_ANSWER, parse_options=_SPLIT, convert_options=_TYPES)
        )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[!.]*"))


def _ordered(counts: pa.Table) -> pa.Table:
    return counts.sort_by("word").combine_chunks()


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
