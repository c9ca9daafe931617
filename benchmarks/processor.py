"""One stateful processor, unchanged, on Spark and on Millstream: by rows, and by pandas frames.

Both read the same files in one session, in the same epochs, of which each has a row of every key;
they take turns, and every final state is compared with the right one. Times are Spark's
``triggerExecution``, without the first epoch of a run.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

from benchmarks.goals import merged
from benchmarks.harness import Options, Result, asked_of, note, parser_for, take
from benchmarks.peers.processors import (
    Input,
    on_millstream,
    on_spark,
    require_protobuf,
    write_input,
)

KEYS, QUICK_KEYS = 100_000, 10_000
WARM_UP_KEYS = 5_000
EPOCHS = 3
PARTS = ("row", "pandas")


class Course:
    """Runs both engines in turn, and checks what they count."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = count()

    def input(self, keys: int, epochs: int) -> Input:
        folder = self._folder / f"rows{next(self._numbers)}"
        return write_input(folder, keys=keys, epochs=epochs)

    def seconds(self, engine: str, given: Input, *, in_pandas: bool) -> float:
        """The median time of an epoch, without the first."""
        run = on_spark if engine == "spark" else on_millstream
        work = self._folder / f"run{next(self._numbers)}"
        triggers, totals = run(self._spark, given, work, in_pandas=in_pandas)
        if totals != given.totals():
            raise SystemExit(f"{engine} counted wrong over {given.keys:,} keys")
        shown = " ".join(f"{time:.0f}" for time in triggers)
        note(f"{engine}, {given.keys:,} keys, exact; epochs in ms: {shown}")
        return median(triggers[1:]) / 1000


def processor(spark: SparkSession, options: Options, parts: tuple[str, ...]) -> list[Result]:
    """Take the measurements of some parts."""
    require_protobuf()
    course = Course(spark, options.folder)
    warm_up = course.input(WARM_UP_KEYS, 2)
    given = course.input(QUICK_KEYS if options.quick else KEYS, EPOCHS)
    results = []
    for part in parts:
        in_pandas = part == "pandas"
        for engine in ("millstream", "spark", "millstream"):
            course.seconds(engine, warm_up, in_pandas=in_pandas)
        before = course.seconds("millstream", given, in_pandas=in_pandas)
        theirs = course.seconds("spark", given, in_pandas=in_pandas)
        ours = median([before, course.seconds("millstream", given, in_pandas=in_pandas)])
        results += [
            Result(f"{part}_processor_epoch", ours, "s"),
            Result(f"spark_{part}_processor_epoch", theirs, "s"),
            Result(f"{part}_processor_speedup", theirs / ours, "times"),
        ]
    return results


def main() -> None:
    """Run the benchmark, or one part of it: the results of the other one stay in the file."""
    parser = parser_for(__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="only one of the two forms")
    asked = asked_of(parser)
    parts = PARTS if asked.part is None else (asked.part,)

    def measured(spark: SparkSession, options: Options) -> list[Result]:
        found = processor(spark, options, parts)
        return found if asked.json is None or asked.part is None else merged(asked.json, found)

    take(asked, measured)


if __name__ == "__main__":
    main()
