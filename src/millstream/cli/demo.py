"""The demo: a stateful word count over a stream, compared with a batch query of Spark."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.cli.zipf import ZipfText
from millstream.observe.progress import Totals

DEFAULT_WORDS = 50_000_000
_FILES_PER_EPOCH = 4


def split(line: str) -> Iterator[tuple[str, int]]:
    """Yield every word of a line with a one."""
    for word in line.split():
        yield word, 1


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    """Add to the count of a word, and yield it."""
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What to count, and where."""

    words: int = DEFAULT_WORDS
    nodes: int = 2
    master: str = "local[2]"

    def run(self) -> int:
        """Run it all; 0 if every count was right."""
        _set_up_logging()
        with tempfile.TemporaryDirectory(prefix="millstream-demo-") as folder:
            return self._run(Path(folder))

    def _run(self, folder: Path) -> int:
        # Spark is imported here, after Java was found.
        from millstream.spark.session import acquire, release

        text = folder / "text"
        size = ZipfText(words=self.words).write(text)
        _say(f"wrote {self.words:,} words of text, {size / 1e6:,.0f} MB")
        spark = acquire(self.master)
        try:
            started = time.monotonic()
            counts, totals = self._stream(text, folder / "checkpoint")
            seconds = time.monotonic() - started
            _say(f"streamed in {seconds:.1f} s; now the same as a batch")
            wrong = differences(counts, _batch_counts(spark, text))
        finally:
            release(spark)
        print(summary(self.words, seconds, totals, len(counts)))
        for word, (found, expected) in list(wrong.items())[:10]:
            print(f"{word}: counted {found}, should be {expected}")
        print(f"exact: {'no' if wrong else 'yes'}")
        return 1 if wrong else 0

    def _stream(self, text: Path, checkpoint: Path) -> tuple[dict[str, int], Totals]:
        flow = ms.Workflow("wordcount")
        lines = flow.source("lines", ms.read.text(text, max_files_per_epoch=_FILES_PER_EPOCH))
        lines.map_reduce("count", map=split, reduce=count)
        with ms.start(flow, checkpoint=checkpoint, nodes=self.nodes) as run:
            run.await_termination()
            counts = {word: state["n"] for word, state in run.state("count").items()}
            return counts, run.progress.totals


def _batch_counts(spark: Any, text: Path) -> dict[str, int]:
    words = spark.read.text(str(text)).selectExpr("explode(split(value, ' ')) AS word")
    return dict(map(tuple, words.groupBy("word").count().collect()))


def differences(
    found: Mapping[str, int], expected: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The words whose counts differ: what was found, and what is right."""
    if found == expected:
        return {}
    return {
        word: (found.get(word, 0), expected.get(word, 0))
        for word in sorted(found.keys() | expected.keys())
        if found.get(word) != expected.get(word)
    }


def summary(words: int, seconds: float, totals: Totals, distinct: int) -> str:
    """What the run did, in a few lines."""
    lines = [
        ("words", f"{words:,} ({distinct:,} different)"),
        ("words per second", f"{words / seconds:,.0f}"),
        ("epochs", f"{totals.epochs:,}"),
        ("epoch latency", f"p50 {totals.latency_p50:.2f} s, p99 {totals.latency_p99:.2f} s"),
    ]
    return "\n".join(f"{name:18}{value}" for name, value in lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _set_up_logging() -> None:
    """Print what a run logs when there is no terminal for the display."""
    log = logging.getLogger("millstream")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    # Py4J logs a call that Ctrl-C interrupted, with a useless stack trace.
    logging.getLogger().addHandler(logging.NullHandler())
