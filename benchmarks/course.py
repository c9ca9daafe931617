"""Runs contenders over texts in one Spark session, and checks their answers."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.data import Text, write_text
from benchmarks.peers.contender import Contender, Counts, Measured, batch_counts

TINY_EPOCH = 10_000  # words, in 1,000 rows


class Course:
    """Runs contenders over texts, each run in its own folder, and checks every answer."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = count()
        self._answers: dict[Text, Counts] = {}

    def text(self, *, epochs: int, words_per_epoch: int) -> Text:
        folder = self._folder / f"text{next(self._numbers)}"
        return self.add(write_text(folder, epochs=epochs, words_per_epoch=words_per_epoch))

    def add(self, text: Text) -> Text:
        """Find the right answer for a text, so that it can be run."""
        self._answers[text] = batch_counts(self._spark, text)
        return text

    def run(self, contender: Contender, text: Text) -> Measured:
        measured = contender.run(self._spark, text, self._folder / f"run{next(self._numbers)}")
        if measured.counts != self._answers[text]:
            raise SystemExit(f"{contender.name} counted wrong over {text.words:,} words")
        return measured
