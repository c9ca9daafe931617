"""The workflow of the simulated run: two jobs between a source and two sinks."""

from __future__ import annotations

from millstream.api import contract as c

WORDS = ("stream", "wheel", "water", "grain", "stone", "mill", "river", "flour", "sluice", "race")


def workflow_at(rate: float, time: float) -> tuple[c.GraphView, list[c.JobView]]:
    """The graph and its jobs at a rate of input."""
    mark = time - 4
    vertices = [
        c.VertexView(id=0, kind="source", name="lines", text="kafka, topic books"),
        c.VertexView(id=1, kind="step", name=None, text="filter is_text"),
        c.VertexView(id=2, kind="job", name="count", text="map_reduce, map split, reduce count"),
        c.VertexView(id=3, kind="job", name="trending", text="sliding window of 1 min, slide 10 s"),
        c.VertexView(id=4, kind="sink", name="counts", text="parquet out/counts"),
        c.VertexView(id=5, kind="sink", name="alerts", text="callback notify"),
    ]
    edges = [
        (0, 1, None, None),
        (1, 2, rate, None),
        (2, 3, rate * 0.3, mark),
        (2, 4, rate * 0.3, None),
        (3, 5, rate * 0.002, mark),
    ]
    rates = {"count": (rate, rate * 0.3, None), "trending": (rate * 0.3, rate * 0.002, mark)}
    jobs = [
        c.JobView(
            name=name,
            rows_per_second=rows,
            outputs_per_second=outputs,
            reduce_seconds=0.12,
            state_keys=round(1e6 + time % 1e5),
            watermark=watermark,
            lag=None if watermark is None else 4.0,
            late=0,
            ahead=0,
            untimed=0,
            fused=[],
        )
        for name, (rows, outputs, watermark) in rates.items()
    ]
    shown = [
        c.EdgeView(source=source, target=target, rows_per_second=rows, watermark=watermark)
        for source, target, rows, watermark in edges
    ]
    return c.GraphView(vertices=vertices, edges=shown), jobs
