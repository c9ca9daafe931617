"""What happens in the demo, and what it prints.

A stateful word count catches up with a backlog, then follows a stream. Meanwhile a node is killed,
nodes are added, a word becomes hot and slots are rebalanced, and nodes leave again. At the end
every count is compared with a batch query of Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean

import millstream as ms
from millstream.cli.demo.latencies import Scene, table
from millstream.cli.demo.text_feed import HOT, TextFeed
from millstream.cli.demo.word_count import EXACT, JOB, batch_counts, verdict, word_count
from millstream.errors import MillstreamError
from millstream.observe.progress import EpochProgress, Totals

FEW, MANY = 2, 4
_FILES_PER_EPOCH = 8
_POLL = timedelta(seconds=0.1)
_PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much text there is, and how many epochs are watched between two scenes."""

    words_per_file: int
    backlog: int
    pause: float
    watched: int


FULL = Size(words_per_file=100_000, backlog=80, pause=0.25, watched=25)
QUICK = Size(words_per_file=5_000, backlog=8, pause=0.1, watched=4)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Where it runs, whether it is the ``quick`` one, and whether it opens a browser."""

    master: str = "local[2]"
    quick: bool = False
    browser: bool = True

    def run(self) -> int:
        """Run it all; 0 if every count was right."""
        _set_up_logging()
        with tempfile.TemporaryDirectory(prefix="millstream-demo-") as folder:
            return self._run(Path(folder), QUICK if self.quick else FULL)

    def _run(self, folder: Path, size: Size) -> int:
        # Spark is imported here, after Java was found.
        from millstream.spark.session import acquire, release

        feed = TextFeed(
            folder,
            words=size.words_per_file,
            pause=size.pause,
            ahead=_FILES_PER_EPOCH * size.words_per_file,
        )
        feed.add(size.backlog)
        spark = acquire(self.master)
        try:
            flow = word_count(feed.folder, files_per_epoch=_FILES_PER_EPOCH)
            with ms.start(flow, checkpoint=folder / "checkpoint", nodes=FEW) as run:
                self._show_dashboard(run)
                story = Story(run, feed, size)
                story.tell()
                counts = {word: state["n"] for word, state in run.state(JOB).items()}
            say("comparing every count with a batch query of Spark")
            outcome = verdict(counts, batch_counts(spark, feed.folder))
        finally:
            feed.stop()
            release(spark)
        print("\n".join([*story.summary(len(counts)), *outcome]))
        return int(outcome[-1] != EXACT)

    def _show_dashboard(self, run: ms.Run) -> None:
        if run.dashboard is None:
            say("for the dashboard: pip install 'millstream[dashboard]'")
            return
        say(f"dashboard (this link opens it once): {run.dashboard_link()}")
        # Without a desktop, a browser would take over the terminal.
        if self.browser and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
            webbrowser.open(run.dashboard_link())


class Story:
    """The scenes of the demo, played on a run."""

    def __init__(self, run: ms.Run, feed: TextFeed, size: Size) -> None:
        self._run = run
        self._feed = feed
        self._size = size
        self._seconds: list[float] = []  # of each epoch
        self._scenes: list[Scene] = []
        self._backlog_rate = 0.0
        run.progress.listen(self._hear)

    def _hear(self, report: EpochProgress) -> None:
        self._feed.counted += report.rows
        self._seconds.append(report.seconds)

    def tell(self) -> None:
        """Play all scenes, and wait until every word is counted."""
        self._catch_up()
        self._feed.start()
        self._watch()
        self._kill()
        self._scale(MANY)
        self._heat()
        self._scale(FEW)
        self._feed.stop()
        self._until(lambda: self._feed.counted >= self._feed.added, "the last epoch")

    # -- scenes --------------------------------------------------------------------------

    def _catch_up(self) -> None:
        backlog = self._feed.added
        say(f"counting a backlog of {backlog:,} words with {FEW} nodes")
        began = time.monotonic()
        self._until(lambda: self._feed.counted >= backlog, "the end of the backlog")
        self._backlog_rate = backlog / (time.monotonic() - began)
        say(f"  done, {self._backlog_rate:,.0f} words per second; now the stream")

    def _kill(self) -> None:
        victim = self._run.status().nodes[0]
        say(f"killing node {victim.node[:8]}, which has {victim.slots:,} of the slots (SIGKILL)")
        began = time.monotonic()
        with self._scene("a node is killed") as notes:
            os.kill(victim.pid, signal.SIGKILL)
            self._until(lambda: victim.node in self._run.status().lost, "the takeover")
            self._until(lambda: self._is_whole(FEW), "the replacement of the node")
            notes.append(f"replaced after {time.monotonic() - began:.1f} s")
        self._watch()

    def _scale(self, nodes: int) -> None:
        before = len(self._run.status().nodes)
        say(f"{'growing' if nodes > before else 'shrinking'} from {before} to {nodes} nodes")
        began = time.monotonic()
        with self._scene(f"{before} to {nodes} nodes") as notes:
            self._run.scale(nodes)
            self._until(lambda: self._is_whole(nodes), f"the change to {nodes} nodes")
            notes.append(f"done after {time.monotonic() - began:.1f} s")
        self._watch()

    def _heat(self) -> None:
        say(f"making a key hot: every second word is {HOT!r} from now on")
        self._feed.hot = True
        self._until(lambda: self._share() > 0.4, "the detection of the hot key")
        self._watch()
        tuples = self._tuples()
        owner = max(tuples, key=lambda node: tuples[node])
        before, slots = self._imbalance(), self._slots(owner)
        say(f"  it has {self._share():.0%} of all tuples; rebalancing")
        with self._scene("a hot key") as notes:
            self._run.rebalance()
            self._until(lambda: self._is_whole(MANY), "the rebalancing")
            gone = slots - self._slots(owner)
            notes.append(f"its node gave up {gone:,} of {slots:,} slots")
        self._watch()
        say(f"  load of the busiest node over the mean: {before:.2f}, now {self._imbalance():.2f}")

    @contextlib.contextmanager
    def _scene(self, name: str) -> Iterator[list[str]]:
        notes: list[str] = []
        began = len(self._seconds)
        yield notes
        self._scenes.append(Scene(name, began, len(self._seconds), ", ".join(notes)))
        say(f"  {', '.join(notes)}")

    # -- what is watched -----------------------------------------------------------------

    def _watch(self) -> None:
        wanted = len(self._seconds) + self._size.watched
        self._until(lambda: len(self._seconds) >= wanted, "the next epochs")

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not happened():
            if time.monotonic() > deadline:
                raise MillstreamError(
                    f"{what} did not come within {_PATIENCE:.0f} s; is the machine overloaded?"
                )
            self._run.await_termination(_POLL)  # raises if the run has failed

    def _is_whole(self, nodes: int) -> bool:
        """Whether so many nodes own all slots, and every copy is in sync."""
        status = self._run.status()
        return (
            [node.role for node in status.nodes] == ["active"] * nodes
            and status.pending == 0
            and all(node.slots and node.in_sync == node.copies for node in status.nodes)
        )

    def _slots(self, node: str) -> int:
        return sum(each.slots for each in self._run.status().nodes if each.node == node)

    def _tuples(self) -> dict[str, float]:
        """How many tuples each node reduces per epoch."""
        load = self._run.load()
        return {} if load is None else {node: each.tuples for node, each in load.nodes.items()}

    def _imbalance(self) -> float:
        tuples = self._tuples().values()
        return max(tuples) / mean(tuples)

    def _share(self) -> float:
        """The share of the hot key in all tuples."""
        load = self._run.load()
        keys = () if load is None else load.hot_keys
        return max((hot.share for hot in keys if HOT in hot.key), default=0.0)

    def summary(self, distinct: int) -> list[str]:
        """What the run did, in a few lines."""
        totals = self._run.progress.totals
        figures = summary(self._feed.added, distinct, self._backlog_rate, totals)
        return [*figures, "", *table(self._scenes, self._seconds), ""]


def summary(words: int, distinct: int, rate: float, totals: Totals) -> list[str]:
    """The figures of the whole run."""
    figures = [
        ("words", f"{words:,} ({distinct:,} different)"),
        ("words per second", f"{rate:,.0f} (the backlog)"),
        ("epochs", f"{totals.epochs:,}"),
        ("epoch latency", f"p50 {totals.latency_p50:.2f} s, p99 {totals.latency_p99:.2f} s"),
    ]
    return [f"{name:18}{value}" for name, value in figures]


def say(text: str) -> None:
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
