"""What a load does to a run: nodes and latency over time, and both in a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.load_shapes import Floats
from benchmarks.modelled_work import Played, Sample

SHARE = 0.95


@dataclass(frozen=True)
class Trace:
    """Load, nodes and latency over time, in seconds from the first epoch on.

    Rates (of what was processed) and latencies (from when a row was due to when its output came, on
    average) have a point for each epoch, nodes one for each change, and the last. ``p95`` is the
    latency that 95 % of all rows do not exceed.
    """

    rate: Sequence[tuple[float, float]]
    nodes: Sequence[tuple[float, float]]
    latency: Sequence[tuple[float, float]]
    p95: float
    node_seconds: float

    @property
    def mean_nodes(self) -> float:
        return self.node_seconds / (self.nodes[-1][0] - self.nodes[0][0])


def trace_of(run: Played, due: Floats) -> Trace:
    """Put together what was seen of a run whose rows are ``due`` at these times, in their order."""
    start = run.epochs[0].began
    ends = np.cumsum([seen.rows for seen in run.epochs])
    # No row is admitted before it is due, and most epochs have all rows that are due by then.
    begun = min(seen.began - due[end - 1] for seen, end in zip(run.epochs, ends, strict=True))
    late = [
        seen.output - begun - rows
        for seen, rows in zip(run.epochs, np.split(due, ends[:-1]), strict=True)
    ]
    samples = [sample for sample in run.samples if sample.time >= start]
    return Trace(
        rate=[(b.began - start, b.rows / (b.began - a.began)) for a, b in pairwise(run.epochs)],
        nodes=[(sample.time - start, float(sample.nodes)) for sample in changes_of(samples)],
        latency=[
            (seen.output - start, float(rows.mean()))
            for seen, rows in zip(run.epochs, late, strict=True)
            if len(rows)
        ],
        p95=float(np.quantile(np.concatenate(late), SHARE)),
        node_seconds=node_seconds(samples),
    )


def changes_of(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with another number of nodes than before, and the last."""
    changed = [b for a, b in pairwise(samples) if a.nodes != b.nodes]
    return [samples[0], *changed, samples[-1]]


def node_seconds(samples: Sequence[Sample]) -> float:
    """How long nodes lived, all together."""
    return sum(a.nodes * (b.time - a.time) for a, b in pairwise(samples))
