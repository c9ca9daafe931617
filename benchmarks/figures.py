"""From runs to figures: rates, epoch times, CPU time, memory; the median of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from benchmarks.data import Dataset
from benchmarks.peers.peer import Run


class TooShortError(Exception):
    """There was too little input for a figure."""


@dataclass(frozen=True)
class Sample:
    """One round of one entry. Epoch times are in milliseconds, without those that warm up."""

    rate: float
    cpu_per_million: float
    memory: int
    others: float
    epochs: Sequence[float] = ()
    facts: dict[str, float] = field(default_factory=dict)


def by_epochs(run: Run, given: Dataset) -> Sample:
    """The second half of the epochs, from the end of one to the end of the next."""
    ends = run.ran.ends
    half = len(ends) // 2
    steady = [1000 * (b - a) for a, b in pairwise(ends[max(0, half - 1) :])]
    rate = len(steady) * given.items_per_epoch / (sum(steady) / 1000)
    return _sample(rate, run, given.items, steady)


def by_difference(long: Run, short: Run, items: int) -> Sample:
    """What the long run took more than the short one, for so many words or rows more."""
    seconds = long.ran.seconds - short.ran.seconds
    if seconds <= 0 or items <= 0:
        raise TooShortError("the long run took no longer than the short one: give it more input")
    cpu = long.usage.cpu - short.usage.cpu
    return Sample(items / seconds, 1e6 * cpu / items, long.usage.memory, _others(long))


def of_whole(run: Run, given: Dataset) -> Sample:
    """All of a batch query."""
    return _sample(given.items / run.ran.seconds, run, given.items, ())


def _sample(rate: float, run: Run, items: int, epochs: Sequence[float]) -> Sample:
    cpu = 1e6 * run.usage.cpu / items
    return Sample(rate, cpu, run.usage.memory, _others(run), epochs, run.ran.facts)


def _others(run: Run) -> float:
    """The CPU time of other processes over that of the run's own."""
    return run.usage.others / run.usage.cpu if run.usage.cpu else 0.0


@dataclass
class Figure:
    """All rounds of an entry."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Words or rows per second."""
        return median(sample.rate for sample in self.samples)

    @property
    def spread(self) -> float:
        """The largest rate less the smallest, over the median."""
        rates = [sample.rate for sample in self.samples]
        return (max(rates) - min(rates)) / self.rate

    @property
    def epoch_ms(self) -> float | None:
        """The median epoch of all rounds."""
        epochs = [each for sample in self.samples for each in sample.epochs]
        return median(epochs) if epochs else None

    @property
    def cpu_per_million(self) -> float:
        return median(sample.cpu_per_million for sample in self.samples)

    @property
    def memory(self) -> float:
        return median(sample.memory for sample in self.samples)

    @property
    def others(self) -> float:
        return max(sample.others for sample in self.samples)

    @property
    def node_bytes_per_key(self) -> float:
        """The memory that nodes gained for each key that they gained after the first epoch."""
        return median(
            (facts["last_node_bytes"] - facts["first_node_bytes"])
            / (facts["last_keys"] - facts["first_keys"])
            for facts in (sample.facts for sample in self.samples)
        )
