"""The callback of ``foreachBatch``: Spark's part in an epoch, and the errors of a failed one.

:func:`millstream.coordinator.epochs.run_epoch` has the order of steps within an epoch. The callback
returns after it, or, with *overlap*, when Spark has evaluated it: Spark then plans the next epoch
while this one is committed (``epoch_thread``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.checkpoints.chain import SupersededError
from millstream.checkpoints.manifest import Staged
from millstream.coordinator.epochs import EpochResult, run_epoch
from millstream.coordinator.service import Coordinator
from millstream.errors import DataError, MillstreamError
from millstream.flow.plan import Plan
from millstream.observe.progress import EpochProgress, JobProgress, Progress, StoreProgress
from millstream.observe.time_progress import time_progress
from millstream.observe.tracing import EpochTrace, Tracing
from millstream.spark.compile import EpochFrames, Frames
from millstream.spark.epoch_thread import EpochThread, ThreadContext
from millstream.spark.file_scans import FileScan, FileScans
from millstream.spark.gateway import SparkLostError
from millstream.spark.sink_writers import ForeachBatchWriter, SinkWriter
from millstream.spark.spark_log import SparkLog
from millstream.times import END
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.receipts import NodeReport
from millstream.work.failures import user_error

log = logging.getLogger("millstream")

_BATCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # A batch of blocks must not pass the 2 GiB of Arrow's offsets, however large they are.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
}


class EpochFailedError(MillstreamError):
    """Spark could not run an epoch, for a reason that is not the user's code."""


class RunStoppedError(Exception):
    """Ends the query between two epochs; users never see it."""


class Engine:
    """Runs epochs; the callback of ``foreachBatch``."""

    def __init__(
        self,
        plan: Plan,
        frames: EpochFrames,
        scans: FileScans,
        coordinator: Coordinator,
        sinks: Mapping[int, SinkWriter],
        progress: Progress,
        clock: Callable[[], float] = time.time,
        successor: Callable[[BaseException], SupersededError | None] = lambda _: None,
        spark_lost: Callable[[], SparkLostError | None] = lambda: None,
        log: SparkLog | None = None,
        overlap: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        """``successor`` and ``spark_lost`` explain a failure: a newer driver, or a lost JVM.

        ``log`` is the log of Spark, if it is a session of ours. With ``overlap``, Spark plans the
        next epoch while one is committed.
        """
        self._overlap = EpochThread() if overlap else None
        self._staged = threading.Event()
        self._plan = plan
        self._frames = frames
        self._scans = scans
        self._coordinator = coordinator
        self._sinks = sinks
        self._progress = progress
        self._clock = clock
        self._successor = successor
        self._spark_lost = spark_lost
        self._log = log
        self._tracing = tracing or Tracing(plan.name)
        self._names = {at: sink.name for at, sink in plan.sinks}
        self._tuned = False
        self._thread: int | None = None
        self._idle = threading.Event()
        self._idle.set()
        self.stopping = threading.Event()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.query: StreamingQuery | None = None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """Run one epoch, or hand it over; raises a short exception for Spark if it fails."""
        self._idle.wait()  # for the epoch before, if that was handed over
        batch = _Batch(frame, epoch, self._scans.spark_plan())
        context = None if self._overlap is None else ThreadContext.of_caller(frame.sparkSession)
        self._idle.clear()  # what fails before ends the query; what follows sets it again
        if self.stopping.is_set() or self.error is not None:
            self._idle.set()
            raise RunStoppedError("stopped")
        if self._overlap is not None:
            self._staged.clear()
            self._overlap.hand_over(partial(self._run_handed_over, context, batch))
            self._staged.wait()
        else:
            self._run_or_fail(batch)
        if self.error is not None:
            raise RunStoppedError(type(self.error).__name__)

    def _run_handed_over(self, context: ThreadContext | None, batch: _Batch) -> None:
        self._run_or_fail(batch, context)
        if self.error is not None:
            self.give_up()

    def _run_or_fail(self, batch: _Batch, context: ThreadContext | None = None) -> None:
        self._thread = threading.get_ident()
        try:
            if context is not None:
                context.enter()
            with self._coordinator.log_context.entered():
                self._run(batch)
        except BaseException as problem:
            self.fail(problem, batch.epoch)
        finally:
            self._thread = None
            self._staged.set()  # first: the next epoch, which clears it, waits for the other
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no epoch runs."""
        return self._idle.is_set()

    def close(self) -> None:
        """End the thread of epochs."""
        if self._overlap is not None:
            self._overlap.close()

    def fail(self, problem: BaseException, epoch: int | None = None) -> None:
        """Record why the run failed: the first reason, as the user's error."""
        if self.error is not None:
            return
        try:
            error = self._explained(problem)
        except Exception as other:  # what would explain it may have failed, too
            log.warning("an error could not be explained: %r", other)
            error = problem
        if isinstance(error, DataError) and error.epoch is None:
            error.epoch = epoch
        if self._log is not None:
            error.add_note(f"Spark's log: {self._log.retain()}")
        self.error = error

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a sink's function or a listener, inside an epoch."""
        return self._thread == threading.get_ident()

    def stop(self, query: StreamingQuery) -> None:
        """Let the epoch under way finish, admit no other, and end the query."""
        self.stopping.set()
        self._idle.wait()
        with contextlib.suppress(Exception):  # a query that ends at this moment anyway
            query.stop()

    def close_windows(self) -> None:
        """Let the next epoch close all windows; ``ended`` is set when one has done so."""
        self.ended.clear()
        self._coordinator.advance(END)

    def give_up(self) -> None:
        """End the query at once: an epoch failed, or state was lost."""
        if self.query is not None:
            with contextlib.suppress(Exception):
                self.query.stop()

    def _run(self, batch: _Batch) -> None:
        epoch = batch.epoch
        if epoch <= self._coordinator.ledger.committed.epoch:
            return  # committed by us, and not yet in Spark's commit log
        with self._tracing.epoch(epoch, self._coordinator.ledger.incarnation) as trace:
            try:
                self._run_traced(batch, trace)
            except BaseException as problem:
                self.fail(problem, epoch)
                trace.fail(self.error or problem)
                raise

    def _run_traced(self, batch: _Batch, trace: EpochTrace) -> None:
        epoch = batch.epoch
        started = time.perf_counter()
        self._tune(batch.frame)
        # For Spark's UI. The job group stays that of the query, which a stop cancels.
        context = batch.frame.sparkSession.sparkContext
        context.setJobDescription(f"{self._plan.name}: epoch {epoch}")
        scan = self._scans.of_epoch(batch.frame.sparkSession, batch.plan)
        build = partial(self._frames.build, batch.frame, scan=scan)
        on_staged = partial(self._on_staged, scan)
        body = _SparkBody(build, self._coordinator, self._sinks, self._names, on_staged)
        result = run_epoch(
            self._coordinator, epoch, round(self._clock() * 1e6), body, trace.add_phase
        )
        if any(clock.watermark == END for clock in result.record.clocks.values()):
            self.ended.set()
        report = EpochProgress(
            epoch=epoch,
            tries=result.record.try_ + 1,
            seconds=time.perf_counter() - started,
            jobs=self._jobs(result),
            nodes=len(result.reports),
            node_memory=sum(report.memory for report in result.reports.values()),
            cold_keys=sum(report.cold_keys for report in result.reports.values()),
            store=_stored(result.reports.values()),
            time=self._clock(),
            phases=result.phases,
        )
        trace.commit(report)
        self._progress.add(report)

    def _on_staged(self, scan: FileScan | None) -> None:
        if scan is not None:
            scan.report()  # before Spark reports the progress of the epoch
        self._staged.set()

    def _tune(self, frame: DataFrame) -> None:
        # The frame's session is the query's own clone: the user's settings stay untouched.
        if not self._tuned:
            for name, value in _BATCH_SETTINGS.items():
                frame.sparkSession.conf.set(name, value)
            self._tuned = True

    def _jobs(self, result: EpochResult) -> dict[str, JobProgress]:
        found = {}
        for at, job in self._plan.jobs:
            counts = result.counts[at]
            found[job.name] = JobProgress(
                rows=counts.rows,
                keys=counts.keys,
                outputs=counts.outputs,
                reduce_seconds=counts.seconds,
                state_keys=sum(r.state_keys.get(at, 0) for r in result.reports.values()),
                fused=tuple(fused.name for _, fused in self._plan.fused_into(at)),
                **time_progress(result, at),
            )
        return found

    def _explained(self, problem: BaseException) -> BaseException:
        superseded = self._successor(problem)
        if superseded is not None:
            return superseded
        if isinstance(problem, KeyboardInterrupt):
            return problem
        if (lost := self._spark_lost()) is not None:
            lost.__cause__ = problem
            return lost
        if self._coordinator.state_lost is not None:
            return self._coordinator.state_lost
        if isinstance(problem, MillstreamError):
            return problem
        known = self._coordinator.failure()
        if known is not None:
            return known
        failed = EpochFailedError(f"Spark could not run the epoch: {str(problem)[:2000]}")
        failed.__cause__ = problem
        return failed


@dataclass(frozen=True)
class _Batch:
    """What Spark hands over for an epoch: its rows, and the physical plan behind them."""

    frame: DataFrame
    epoch: int
    plan: Any


class _SparkBody:
    """An epoch's body: frames that Spark evaluates, and sinks that stage them."""

    def __init__(
        self,
        build: Callable[[EpochRecord], contextlib.AbstractContextManager[Frames]],
        coordinator: Coordinator,
        sinks: Mapping[int, SinkWriter],
        names: Mapping[int, str],
        on_staged: Callable[[], None],
    ) -> None:
        """``on_staged`` is called when Spark has evaluated a try, and its outputs are staged."""
        self._build = build
        self._coordinator = coordinator
        self._sinks = sinks
        self._names = names
        self._on_staged = on_staged
        self._staged: set[int] = set()

    @contextlib.contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[_SparkAttempt]:
        with self._build(record) as frames:
            # A sink whose columns are not known yet has no rows, and no frame.
            sinks = {at: self._sinks[at] for at in frames.sinks}
            attempt = _SparkAttempt(
                frames, record, self._coordinator, sinks, self._names, self._on_staged
            )
            self._staged = attempt.staged
            yield attempt

    def discard(self, record: EpochRecord) -> None:
        for writer in self._sinks.values():
            writer.discard(record.epoch, record.attempt)

    def staged(self, record: EpochRecord) -> Staged:
        names = (self._names[at] for at in sorted(self._staged))
        return Staged(record.epoch, record.attempt, tuple(names))

    def publish(self, staged: Staged) -> None:
        publish(staged, {self._names[at]: writer for at, writer in self._sinks.items()})

    def is_retryable(self, problem: Exception) -> bool:
        if isinstance(problem, MillstreamError):
            return False
        # Spark gives up a job when a re-run map gave other blocks than before the loss of an
        # executor; the next try starts from scratch.
        return self._coordinator.failure() is None and "indeterminate" in str(problem).lower()


class _SparkAttempt:
    """One try: what Spark evaluates now."""

    def __init__(
        self,
        frames: Frames,
        record: EpochRecord,
        coordinator: Coordinator,
        sinks: Mapping[int, SinkWriter],
        names: Mapping[int, str],
        on_staged: Callable[[], None],
    ) -> None:
        self._frames = frames
        self._record = record
        self._coordinator = coordinator
        self._sinks = sinks
        self._names = names
        self._on_staged = on_staged
        self.staged: set[int] = set()  # the sinks that have something to publish after the commit

    def stage(self) -> None:
        if not self._frames.sinks:
            self.evaluate()
        for at, frame in self._frames.sinks.items():
            writer = self._sinks[at]
            try:
                full = writer.stage(frame, self._record.epoch, self._record.attempt)
            except Exception as problem:
                if isinstance(writer, ForeachBatchWriter) and self._coordinator.failure() is None:
                    raise self._blamed(at, writer.function, problem) from problem
                raise
            if full and writer.when == "staged":
                self.staged.add(at)
        self._on_staged()

    def evaluate(self) -> None:
        self._frames.evaluate()

    def call_back(self) -> None:
        for at, writer in self._sinks.items():
            if writer.when == "late":
                try:
                    writer.publish(self._record.epoch, self._record.attempt)
                except Exception as problem:
                    function = getattr(writer, "function", writer.publish)
                    raise self._blamed(at, function, problem) from problem

    def _blamed(
        self, sink: int, function: Callable[..., object], problem: Exception
    ) -> MillstreamError:
        return user_error(f"function of sink {self._names[sink]!r}", function, problem)


def _stored(reports: Iterable[NodeReport]) -> StoreProgress | None:
    counts = [asdict(report.writes) for report in reports if report.writes is not None]
    names = counts[0] if counts else ()
    return (
        StoreProgress(**{name: sum(c[name] for c in counts) for name in names}) if counts else None
    )


def publish(staged: Staged, sinks: Mapping[str, SinkWriter]) -> None:
    """Publish what sinks have staged under a durable commit; idempotent."""
    for name in staged.sinks:
        if name in sinks:
            sinks[name].publish(staged.epoch, staged.attempt)
        else:
            log.warning(
                "there is no sink %r: its output of epoch %d is not published", name, staged.epoch
            )
