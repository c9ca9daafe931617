"""What a load does to a run: nodes and latency over time, and both in a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.modelled_work import Played, Sample, Seen

SHARE = 0.95


@dataclass(frozen=True)
class Trace:
    """Load, nodes and latency over time, in seconds from the first epoch on.

    Rates and latencies have a point for each epoch, nodes one for each change, and the last.
    """

    rate: Sequence[tuple[float, float]]
    nodes: Sequence[tuple[float, float]]
    latency: Sequence[tuple[float, float]]
    p95: float
    node_seconds: float

    @property
    def mean_nodes(self) -> float:
        return self.node_seconds / (self.nodes[-1][0] - self.nodes[0][0])


def trace_of(run: Played) -> Trace:
    """Put together what was seen of a run."""
    start = run.epochs[0].began
    pairs = list(pairwise(run.epochs))
    found = [latency(before, seen) for before, seen in pairs]
    samples = [sample for sample in run.samples if sample.time >= start]
    return Trace(
        rate=[(b.began - start, b.rows / (b.began - a.began)) for a, b in pairs],
        nodes=[(sample.time - start, float(sample.nodes)) for sample in changes_of(samples)],
        latency=[(b.output - start, value) for (_, b), value in zip(pairs, found, strict=True)],
        p95=weighted_quantile(found, [b.rows for _, b in pairs], SHARE),
        node_seconds=node_seconds(samples),
    )


def latency(before: Seen, seen: Seen) -> float:
    """How long a row took, on average, from when it was due to when its output came.

    The rows of an epoch came between the admission of the one before it and its own.
    """
    return seen.output - (before.began + seen.began) / 2


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The value that so great a part of the weights does not exceed."""
    order = np.argsort(values)
    sums = np.cumsum(np.asarray(weights, float)[order])
    return float(np.asarray(values)[order][np.searchsorted(sums, share * sums[-1])])


def changes_of(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with another number of nodes than before, and the last."""
    changed = [b for a, b in pairwise(samples) if a.nodes != b.nodes]
    return [samples[0], *changed, samples[-1]]


def node_seconds(samples: Sequence[Sample]) -> float:
    """How long nodes lived, all together."""
    return sum(a.nodes * (b.time - a.time) for a, b in pairwise(samples))
