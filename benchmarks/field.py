"""Where entries compete: their processes, the inputs, rounds in turn, and the check of answers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa

from benchmarks.data import FILES_PER_EPOCH, Dataset, Text
from benchmarks.figures import (
    Figure,
    Sample,
    TooShortError,
    by_difference,
    by_epochs,
    of_whole,
)
from benchmarks.harness import note
from benchmarks.paced import Pace, Writer, latencies
from benchmarks.peers.entries import Engine, Entry, Speed, Timing
from benchmarks.peers.peer import Peer, PeerError, Run
from benchmarks.peers.protocol import Task
from benchmarks.rounds import rounds
from benchmarks.word_count import WordCount
from benchmarks.workloads.catalog import Recording, Rows

_STARTING = 120.0  # seconds that a query may take to start


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An input for a comparison, and how it is run.

    An entry that is slow gets only the first ``slow_epochs``. Entries are warmed up by runs of at
    least ``warm`` seconds together; there are fewer rounds if they take more than ``seconds``.
    """

    given: Dataset
    rounds: int
    slow_epochs: int
    warm: float
    seconds: float


class Field:
    """Runs entries, each engine in its process, which stays for all comparisons."""

    def __init__(self, folder: Path, *, timeout: float) -> None:
        self._folder = folder
        self._timeout = timeout
        self._numbers = count()
        self._peers: dict[Engine, Peer] = {}
        self._answers: dict[Dataset, pa.Table] = {}
        self._prefixes: dict[tuple[Dataset, int], Dataset] = {}
        self.versions: dict[str, Mapping[str, str]] = {}

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_all()

    def text(self, size: WordCount) -> Text:
        """Write a text."""
        return size.write(self._folder / f"text{next(self._numbers)}")

    def recording(self, workload: str, size: Rows) -> Recording:
        """Write a recording of a workload."""
        return size.record(workload, self._folder / f"rows{next(self._numbers)}")

    def prefix(self, given: Dataset, epochs: int) -> Dataset:
        """The first epochs of an input."""
        if epochs >= given.epochs:
            return given
        known = self._prefixes.get((given, epochs))
        if known is None:
            folder = self._folder / f"prefix{next(self._numbers)}"
            known = self._prefixes[given, epochs] = given.first_epochs(epochs, folder)
        return known

    def peer(self, engine: Engine) -> Peer:
        """The process of an engine."""
        if engine not in self._peers:
            if not engine.is_installed:
                raise PeerError(f"{engine.module} is not installed: type make peers")
            peer = Peer(engine, self._folder / f"{engine.module}.log")
            self._peers[engine] = peer
            self.versions[engine.module] = peer.versions
        return self._peers[engine]

    def stop(self, engine: Engine) -> None:
        """End the process of an engine; it is started anew when it is needed."""
        peer = self._peers.pop(engine, None)
        if peer is not None:
            peer.stop()

    def stop_all(self) -> None:
        """End all processes."""
        for engine in list(self._peers):
            self.stop(engine)

    def keys(self, given: Dataset) -> int:
        """How many rows the answer for an input has that was run."""
        return int(self._answers[given].num_rows)

    def run(self, entry: Entry, given: Dataset, *, check: bool = True) -> Run:
        """Run an entry over an input, and compare its answer with the right one if it gives it."""
        own = self._folder / f"run{next(self._numbers)}"
        own.mkdir()
        answer = own / "answer"
        task = Task(
            form=entry.form,
            folder=str(given.folder),
            files=given.epochs * FILES_PER_EPOCH,
            epochs=given.epochs,
            work=str(own / "work"),
            answer=str(answer) if check or entry.answers else "",
            options={**given.options, **entry.options},
        )
        peer = self.peer(entry.engine)
        try:
            run = peer.run(task, self._timeout)
        except PeerError:
            self.stop(entry.engine)
            raise
        if task.answer:
            if given not in self._answers:
                self._answers[given] = given.right_answer()
            if not given.read_answer(answer).equals(self._answers[given]):
                amount = f"{given.items:,} {given.unit}"
                raise SystemExit(f"{entry.title} gave a wrong answer over {amount}")
        shutil.rmtree(own, ignore_errors=True)
        return run

    def paced(self, entry: Entry, seconds: float, settling: float) -> list[float]:
        """The latencies of records that come while the entry runs, without the first of them."""
        pace = Pace(seconds=settling + seconds)
        folder = self._folder / f"paced{next(self._numbers)}"
        work = self._folder / f"run{next(self._numbers)}"
        task = Task(
            form=entry.form,
            folder=str(folder),
            files=pace.files,
            epochs=1,
            work=str(work),
            records=pace.records,
            patience=settling + seconds + _STARTING,
        )
        peer = self.peer(entry.engine)
        with Writer(pace, folder) as writer:
            run = peer.run(task, self._timeout)
        start, ends, reached = writer.start, run.ran.ends, run.ran.reached
        return latencies(pace, start, ends, reached, settling=settling)

    def compare(self, entries: Sequence[Entry], trial: Trial) -> dict[str, Figure]:
        """Take all rounds; entries that cannot run are left out."""
        figures: dict[str, Figure] = {}
        running: list[Entry] = []
        for entry in entries:
            try:
                self._warm_up(entry, trial)
            except PeerError as failed:
                note(f"{entry.title} is left out: {failed}")
                continue
            running.append(entry)
            figures[entry.name] = Figure()
        for number in rounds(trial.rounds, trial.seconds):
            # There and back again: a machine that drifts treats all alike.
            for entry in running[:] if number % 2 == 0 else running[::-1]:
                try:
                    sample = self._sample(entry, trial)
                except (PeerError, TooShortError) as failed:
                    note(f"{entry.title} is left out: {failed}")
                    running.remove(entry)
                    del figures[entry.name]
                    continue
                figures[entry.name].samples.append(sample)
                note(f"{entry.title}: {sample.rate:,.0f} {trial.given.unit}/s")
        return figures

    def _warm_up(self, entry: Entry, trial: Trial) -> None:
        """Run until the engine is warm; the first run shows that the answer is right."""
        ends = time.monotonic() + trial.warm
        given = self._input_of(entry, trial)
        self.run(entry, self.prefix(given, 1) if entry.speed is not Speed.FAST else given)
        while entry.speed is Speed.FAST and time.monotonic() < ends:
            self.run(entry, given, check=False)

    def _sample(self, entry: Entry, trial: Trial) -> Sample:
        given = self._input_of(entry, trial)
        run = self.run(entry, given, check=False)
        if entry.timing is Timing.EPOCHS:
            return by_epochs(run, given)
        if entry.timing is Timing.WHOLE:
            return of_whole(run, given)
        short = self.prefix(given, 1)
        return by_difference(run, self.run(entry, short, check=False), given.items - short.items)

    def _input_of(self, entry: Entry, trial: Trial) -> Dataset:
        if entry.speed is Speed.SLOW:
            return self.prefix(trial.given, trial.slow_epochs)
        return trial.given
