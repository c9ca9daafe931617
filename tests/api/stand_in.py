"""A run to serve in tests of the HTTP API, without Spark and without nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from millstream.api import contract as c
from millstream.api.served_run import ContinuationGoneError
from millstream.errors import ConfigError


def snapshot(nodes: int = 2, slots: int = 4096) -> c.Snapshot:
    """A snapshot of a word count."""
    names = [f"{at:032x}" for at in range(nodes)]
    starts = [at * slots // nodes for at in range(nodes)]
    stops = [*starts[1:], slots]
    return c.Snapshot(
        number=1,
        time=1e9,
        run=c.RunView(
            workflow="wordcount",
            phase="running",
            incarnation=1,
            started=1e9 - 60,
            committed=7,
            under_way=c.UnderWay(epoch=8, tries=1, since=1e9 - 0.1),
            durable=7,
            target=nodes,
            active=nodes,
            pending=0,
            is_settled=True,
            failure=None,
            waits=[],
            lost=[],
            fenced_alive=[],
        ),
        graph=c.GraphView(
            vertices=[
                c.VertexView(id=0, kind="source", name="lines", text="text files"),
                c.VertexView(id=1, kind="job", name="counts", text="job counts"),
                c.VertexView(id=2, kind="sink", name="out", text="parquet files"),
            ],
            edges=[
                c.EdgeView(source=0, target=1, rows_per_second=1000.0, watermark=None),
                c.EdgeView(source=1, target=2, rows_per_second=500.0, watermark=None),
            ],
        ),
        jobs=[
            c.JobView(
                name="counts",
                rows_per_second=1000.0,
                outputs_per_second=500.0,
                reduce_seconds=0.05,
                state_keys=3,
                watermark=None,
                lag=None,
                late=0,
                ahead=0,
                untimed=0,
                fused=[],
            )
        ],
        epochs=[
            c.EpochView(
                epoch=7,
                time=1e9 - 0.2,
                tries=1,
                seconds=0.3,
                rows=300,
                rejected=0,
                nodes=nodes,
                phases=[c.PhaseView(name="run", seconds=0.25)],
            )
        ],
        throughput=c.Throughput(
            rows_per_second=1000.0,
            latency_p50=0.3,
            latency_p95=0.4,
            latency_p99=0.5,
            pressure=0.8,
            epochs=8,
            rows=2400,
            state_keys=3,
            state_bytes=300.0,
        ),
        backlog=[],
        checkpoint=c.CheckpointView(durable=7, time=1e9 - 0.1, last=100, written=800, records=8),
        nodes=[
            c.NodeView(
                id=name,
                host="localhost",
                executor="1",
                zone="a",
                pid=100,
                role="active",
                is_slow=False,
                slots=stop - start,
                copies=stop - start,
                in_sync=stop - start,
                cpu=0.5,
            )
            for name, start, stop in zip(names, starts, stops, strict=True)
        ],
        ring=c.RingView(
            version=1,
            slots=slots,
            replicas=1,
            tokens=[
                c.TokenView(slot=start, node=name)
                for name, start in zip(names, starts, strict=True)
            ],
            arcs=[
                c.ArcView(start=start, stop=stop, owner=name, copies=[names[at - 1]])
                for at, (name, start, stop) in enumerate(zip(names, starts, stops, strict=True))
            ],
            moves=[],
            under_replicated=0,
        ),
        hot_keys=[c.HotKeyView(job="counts", key="the", slot=1, owner=names[0], share=0.1)],
    )


class StandInRun:
    """Serves a snapshot, and records the changes that are asked for."""

    workflow = "wordcount"

    def __init__(self) -> None:
        self.now = snapshot()
        self.changes: list[tuple[str, object]] = []
        self.failure: Exception | None = None
        self.log: list[c.EventView] = []
        self.on_snapshot: Callable[[], None] = lambda: None

    def add_event(self, kind: str, text: str) -> None:
        self.log.append(
            c.EventView(number=len(self.log) + 1, time=1e9, epoch=7, kind=kind, text=text, facts={})
        )

    def change(self) -> None:
        """Let the next snapshot differ: another epoch."""
        run = replace(self.now.run, committed=self.now.run.committed + 1)
        self.now = replace(self.now, number=self.now.number + 1, run=run)

    def snapshot(self) -> c.Snapshot:
        self.on_snapshot()
        if self.failure is not None:
            raise self.failure
        return self.now

    def history(self, since: float) -> c.History:
        times = [time for time in (1e9 - 2, 1e9 - 1) if time > since]
        return c.History(times=times, series={"rows_per_second": [1000.0] * len(times)})

    def events(self, since: int, limit: int) -> c.Events:
        found = [event for event in self.log if event.number > since][-limit:]
        return c.Events(events=found, newest=len(self.log))

    def state_jobs(self) -> list[c.StateJob]:
        return [c.StateJob(job="counts", key_type="str", state_keys=3)]

    def get_many(self, job: str, keys: Sequence[str]) -> c.StateItems:
        self._check(job)
        items = [c.StateItem(key=key, text=key, found=True, value=len(key)) for key in keys]
        return c.StateItems(job=job, epoch=7, items=items)

    def scan(self, query: c.ScanQuery) -> c.StateItems:
        self._check(query.job)
        if query.continuation is not None:
            raise ContinuationGoneError
        return self.get_many(query.job, ["a", "bc", "def"][: query.limit])

    def top(self, query: c.TopQuery) -> c.StateItems:
        return self.get_many(query.job, ["def", "bc", "a"][: query.n])

    def scale(self, nodes: int, *, dry_run: bool) -> c.Change:
        return self._change("scale", nodes, dry_run)

    def rebalance(self, *, dry_run: bool) -> c.Change:
        return self._change("rebalance", None, dry_run)

    def drain(self, node: str, *, dry_run: bool) -> c.Change:
        return self._change("drain", node, dry_run)

    def move(self, slots: Sequence[c.SlotRange], to: str, *, dry_run: bool) -> c.Change:
        return self._change("move", (tuple(slots), to), dry_run)

    def stop(self, *, dry_run: bool) -> c.Change:
        return self._change("stop", None, dry_run)

    def _check(self, job: str) -> None:
        if job != "counts":
            raise ConfigError(f"there is no job {job!r}; the jobs are counts")

    def _change(self, kind: str, what: object, dry_run: bool) -> c.Change:
        if not dry_run:
            self.changes.append((kind, what))
        preview = c.ChangePreview(
            text=f"{kind} {what}",
            nodes_before=2,
            nodes_after=2,
            joining=0,
            leaving=[],
            transfers=[],
            slots=0,
            bytes=0,
        )
        return c.Change(dry_run=dry_run, preview=preview, run=self.now.run)
