"""The run that the driver serves over HTTP: coordinator and progress, in terms of the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from millstream.api import contract as c
from millstream.api.change_view import preview_of, stop_preview_of
from millstream.api.event_view import page_of
from millstream.api.graph_view import graph_of, vertices_of
from millstream.api.progress_view import averaged, epoch_of, jobs_of
from millstream.api.ring_view import nodes_of, ring_of
from millstream.api.state_access import StateAccess
from millstream.coordinator.change_preview import Preview
from millstream.coordinator.overview import Overview
from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_reader import StateReader
from millstream.elastic.load import Load
from millstream.flow.plan import Plan
from millstream.log_context import inheriting
from millstream.observe.history import RunHistory
from millstream.observe.progress import EpochProgress, Progress, quantile
from millstream.observe.source_backlog import SourceBacklog, total
from millstream.wire.persistence import NotReadyError

_FRESH = 0.2  # seconds for which a snapshot is not made anew
_SHOWN_EPOCHS = 50


class LiveRun:
    """Implements ``ServedRun`` for a run of this process."""

    def __init__(
        self,
        plan: Plan,
        coordinator: Coordinator,
        progress: Progress,
        history: RunHistory,
        reader: StateReader,
        *,
        phase: Callable[[], c.Phase],
        stop: Callable[[], None],
        backlog: Callable[[], Sequence[SourceBacklog]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._progress = progress
        self._history = history
        self._phase = phase
        self._stop = stop
        self._backlog = backlog
        self._clock = clock
        self._started = clock()
        self._vertices = vertices_of(plan)
        self._state = StateAccess(plan, coordinator, reader, progress)
        self._lock = threading.Lock()
        self._newest: c.Snapshot | None = None
        self._made = 0.0
        self.state_jobs = self._state.jobs
        self.get_many = self._state.get_many
        self.scan = self._state.scan
        self.top = self._state.top

    @property
    def workflow(self) -> str:
        """The name of the workflow."""
        return self._plan.name

    # -- looking ---------------------------------------------------------------------------

    def snapshot(self) -> c.Snapshot:
        """The run now; callers within a moment share one snapshot."""
        with self._lock:
            now = self._clock()
            if self._newest is None or now - self._made >= _FRESH:
                self._newest = _newer(self._newest, self._snapshot(now))
                self._made = now
            return self._newest

    def history(self, since: float) -> c.History:
        """The time series after a time."""
        times, series = self._history.since(since)
        return c.History(times=times, series=series)

    def events(self, since: int, limit: int) -> c.Events:
        """The newest events with a number above ``since``."""
        page = self._coordinator.control.events().by_clock(self._clock())
        return page_of(page, since, limit)

    def _snapshot(self, time: float) -> c.Snapshot:
        if not self._coordinator.has_begun:
            raise NotReadyError("the workflow is starting; retry in a moment")
        recent = self._progress.recent
        load = self._coordinator.load.newest()
        overview = self._coordinator.overview()
        with self._coordinator.scaling.unchanged() as roster:
            ring = ring_of(roster)
        jobs = jobs_of(recent, time)
        backlog = self._backlog()
        self._history.add_backlog(total(backlog))
        return c.Snapshot(
            number=1,
            time=time,
            run=self._run(overview),
            graph=graph_of(self._plan, self._vertices, {job.name: job for job in jobs}),
            jobs=jobs,
            epochs=[epoch_of(report) for report in recent[-_SHOWN_EPOCHS:]],
            throughput=self._throughput(recent, load, time),
            backlog=[
                c.BacklogView(
                    source=each.source, unit=each.unit, amount=each.amount, epochs=each.epochs
                )
                for each in backlog
            ],
            checkpoint=self._checkpoint(overview, recent),
            nodes=nodes_of(overview, {} if load is None else load.nodes),
            ring=ring,
            hot_keys=[
                c.HotKeyView(
                    job=hot.job,
                    key=hot.key,
                    slot=hot.slot,
                    owner=overview.placement.owner(hot.slot),
                    share=hot.share,
                )
                for hot in (() if load is None else load.hot_keys)
            ],
        )

    def _run(self, now: Overview) -> c.RunView:
        record, lost = self._coordinator.ledger.record, self._coordinator.state_lost
        return c.RunView(
            workflow=self.workflow,
            phase=self._phase(),
            incarnation=now.incarnation,
            started=self._started,
            committed=now.committed,
            under_way=None
            if record is None
            else c.UnderWay(epoch=record.epoch, tries=record.try_ + 1, since=record.time / 1e6),
            durable=now.durable,
            target=now.target,
            active=now.active,
            pending=now.pending,
            is_settled=now.is_settled,
            failure=None if lost is None else str(lost),
            waits=list(now.waits),
            lost=list(now.lost),
            fenced_alive=list(now.fenced_alive),
        )

    def _throughput(
        self, recent: Sequence[EpochProgress], load: Load | None, now: float
    ) -> c.Throughput:
        totals, latencies = self._progress.totals, self._history.latencies
        window, seconds = averaged(recent, now)
        return c.Throughput(
            rows_per_second=sum(report.rows for report in window) / seconds,
            latency_p50=quantile(latencies, 0.5),
            latency_p95=quantile(latencies, 0.95),
            latency_p99=quantile(latencies, 0.99),
            pressure=1.0 if load is None else load.pressure,
            epochs=totals.epochs,
            rows=totals.rows,
            state_keys=totals.state_keys,
            state_bytes=0.0 if load is None else float(load.state_bytes.sum()),
        )

    def _checkpoint(
        self, now: Overview, recent: Sequence[EpochProgress]
    ) -> c.CheckpointView | None:
        if now.durable is None:
            return None
        last, store = self._history.checkpoint, recent[-1].store if recent else None
        return c.CheckpointView(
            durable=now.durable,
            time=self._history.checkpoint_time,
            last=None if last is None else last.bytes,
            written=0 if store is None else store.bytes,
            records=0 if store is None else store.records,
        )

    # -- changing --------------------------------------------------------------------------

    def scale(self, nodes: int, *, dry_run: bool) -> c.Change:
        """Set how many nodes shall be active."""
        control = self._coordinator.control
        preview = control.preview_scale(nodes)
        about = f"Scale from {preview.before} to {preview.after}"
        return self._change(preview, about, partial(control.scale, nodes), dry_run)

    def rebalance(self, *, dry_run: bool) -> c.Change:
        """Give every node a fair share of the load."""
        control = self._coordinator.control
        preview = control.preview_rebalance()
        return self._change(preview, f"Rebalance {preview.after}", control.rebalance, dry_run)

    def drain(self, node: str, *, dry_run: bool) -> c.Change:
        """Let a node give up its slots and leave."""
        control = self._coordinator.control
        preview = control.preview_drain(node)
        about = f"Drain from {preview.before} to {preview.after}"
        return self._change(preview, about, partial(control.drain, node), dry_run)

    def move(self, slots: Sequence[c.SlotRange], to: str, *, dry_run: bool) -> c.Change:
        """Make a node the owner of slots."""
        control = self._coordinator.control

        def ranges() -> Iterable[int]:  # not expanded before it is checked: a range may be long
            return chain.from_iterable(range(each.start, each.stop) for each in slots)

        preview = control.preview_move(ranges(), to)
        about = f"Move slots among {preview.after}"
        return self._change(preview, about, lambda: control.move(ranges(), to), dry_run)

    def stop(self, *, dry_run: bool) -> c.Change:
        """Finish the epoch under way, then end the run, in the background."""
        now = self._coordinator.overview()
        if not dry_run:
            threading.Thread(target=inheriting(self._stop), name="millstream-stop").start()
        return c.Change(dry_run=dry_run, preview=stop_preview_of(now), run=self._run(now))

    def _change(
        self, preview: Preview, about: str, make: Callable[[], None], dry_run: bool
    ) -> c.Change:
        if not dry_run:
            make()
            with self._lock:
                # Whoever made the change must not see the run as it was before.
                self._made = float("-inf")
        shown = preview_of(preview, about, self._coordinator.load.newest())
        run = self._run(self._coordinator.overview())
        return c.Change(dry_run=dry_run, preview=shown, run=run)


def _newer(before: c.Snapshot | None, made: c.Snapshot) -> c.Snapshot:
    """The snapshot before, if nothing but the time has changed since."""
    if before is None:
        return made
    if replace(made, number=before.number, time=before.time) == before:
        return before
    return replace(made, number=before.number + 1)
