"""Three ratios, taken in one run: Millstream beside Spark's own stateful queries.

Everyone counts the words of the same files in one session, with the same shuffle partitions and
epochs; every answer is compared with a batch query. Times are Spark's ``triggerExecution``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

from benchmarks.data import Text, write_text
from benchmarks.harness import Options, Result, main, note
from benchmarks.peers.contender import Contender, Counts, Measured, batch_counts, median_of
from benchmarks.peers.ours import BuiltinArrow, BuiltinSql, StatefulFunction
from benchmarks.peers.spark import GroupByCount, TransformWithStatePandas, require_protobuf

TINY_EPOCH = 10_000  # words, in 1,000 rows


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything. ``slow`` is for the contender that needs minutes for the rest."""

    epochs: int
    words_per_epoch: int
    slow_epochs: int
    slow_words_per_epoch: int
    tiny_epochs: int
    rounds: int


FULL = Size(
    epochs=20,
    words_per_epoch=1_000_000,
    slow_epochs=2,
    slow_words_per_epoch=1_000_000,
    tiny_epochs=60,
    rounds=2,
)
QUICK = Size(
    epochs=4,
    words_per_epoch=500_000,
    slow_epochs=2,
    slow_words_per_epoch=50_000,
    tiny_epochs=20,
    rounds=1,
)


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

    def rate(self, contender: Contender, text: Text, warm_up: Text) -> float:
        """Words per second, warm."""
        self.run(contender, warm_up)
        measured = self.run(contender, text)
        rate = measured.words_per_second(text)
        times = " ".join(f"{trigger:.0f}" for trigger in measured.triggers)
        note(f"{contender.name}: {rate:,.0f} words/s, exact; epochs in ms: {times}")
        return rate

    def latencies(self, contenders: Sequence[Contender], text: Text, rounds: int) -> list[float]:
        """Each contender's median trigger time; they take turns, since machines drift."""
        runs: list[list[Measured]] = [[] for _ in contenders]
        for _ in range(rounds):
            for contender, mine in zip(contenders, runs, strict=True):
                mine.append(self.run(contender, text))
                note(f"{contender.name}: {median_of(mine[-1:]):.0f} ms per tiny epoch, exact")
        return [median_of(mine) for mine in runs]


def first_look(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    require_protobuf()
    size = QUICK if options.quick else FULL
    course = Course(spark, options.folder)
    warm_up = course.text(epochs=2, words_per_epoch=50_000)
    stateful, builtin = _throughput(course, size, warm_up)
    return [
        *stateful,
        *builtin,
        *_tiny_epochs(course, size),
        *_pandas(course, size, warm_up, stateful[0]),
    ]


def _throughput(course: Course, size: Size, warm_up: Text) -> tuple[list[Result], list[Result]]:
    text = course.text(epochs=size.epochs, words_per_epoch=size.words_per_epoch)
    note(f"{text.words:,} words in {text.epochs} epochs; the first is left out of the rates")
    stateful = course.rate(StatefulFunction(), text, warm_up)
    group_by = course.rate(GroupByCount(), text, warm_up)
    arrow = course.rate(BuiltinArrow(), text, warm_up)
    sql = course.rate(BuiltinSql(), text, warm_up)
    builtin = [
        Result("spark_groupby_words_per_second", group_by, "words/s"),
        Result("builtin_arrow_words_per_second", arrow, "words/s"),
        Result("builtin_sql_words_per_second", sql, "words/s"),
        Result("builtin_vs_groupby", max(arrow, sql) / group_by, "times"),
    ]
    return [Result("stateful_words_per_second", stateful, "words/s")], builtin


def _pandas(course: Course, size: Size, warm_up: Text, stateful: Result) -> list[Result]:
    text = course.text(epochs=size.slow_epochs, words_per_epoch=size.slow_words_per_epoch)
    note(f"the stateful forms on {text.epochs} epochs of {text.words_per_epoch:,} words")
    ours = stateful.value
    if size.slow_words_per_epoch != size.words_per_epoch:
        # Smaller epochs have fewer words for each key, which costs everyone: compare like to like.
        ours = course.rate(StatefulFunction(), text, warm_up)
    pandas = course.rate(TransformWithStatePandas(), text, warm_up)
    return [
        Result("spark_tws_pandas_words_per_second", pandas, "words/s"),
        Result("stateful_vs_tws_pandas", ours / pandas, "times"),
    ]


def _tiny_epochs(course: Course, size: Size) -> list[Result]:
    text = course.text(epochs=size.tiny_epochs, words_per_epoch=TINY_EPOCH)
    note(f"{text.epochs} epochs of {text.lines_per_epoch:,} rows, {size.rounds} rounds")
    contenders: list[Contender] = [StatefulFunction(), GroupByCount()]
    stateful, group_by = course.latencies(contenders, text, size.rounds)
    return [
        Result("stateful_tiny_epoch", stateful, "ms"),
        Result("spark_groupby_tiny_epoch", group_by, "ms"),
        Result("tiny_epoch_vs_spark", stateful / group_by, "times"),
    ]


if __name__ == "__main__":
    main(__doc__.splitlines()[0], first_look)
