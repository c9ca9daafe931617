"""One epoch, from Spark's callback to the commit.

The order matters: outputs are staged (``foreach_batch`` functions run here), every slot has a
receipt from its owner, callbacks run, staged outputs are published, the nodes seal, and only then
does the callback return, which makes Spark move on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.coordinator.ledger import MissingReceipts
from millstream.coordinator.record import EpochRecord
from millstream.coordinator.service import Coordinator
from millstream.errors import MillstreamError
from millstream.flow.plan import Plan
from millstream.node.messages import NodeReport
from millstream.observe.progress import EpochProgress, JobProgress, Progress
from millstream.ring.ring import NodeId
from millstream.spark.compile import EpochFrames, Frames
from millstream.spark.sinks import ForeachBatchWriter, SinkWriter
from millstream.spark.stage import BlocksLost
from millstream.work.failures import user_error

_MAX_TRIES = 4
_BATCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}


class EpochFailed(MillstreamError):
    """Spark could not run an epoch, for a reason that is not the user's code."""


class RunStopped(Exception):
    """Ends the query between two epochs; never shown to users."""


class Engine:
    """Runs epochs; the callback of ``foreachBatch``."""

    def __init__(
        self,
        plan: Plan,
        frames: EpochFrames,
        coordinator: Coordinator,
        sinks: Mapping[int, SinkWriter],
        progress: Progress,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._frames = frames
        self._coordinator = coordinator
        self._sinks = sinks
        self._progress = progress
        self._clock = clock
        self._names = {at: sink.name for at, sink in plan.sinks}
        self._tuned = False
        self._thread: int | None = None
        self._idle = threading.Event()
        self._idle.set()
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.query: StreamingQuery | None = None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """Run one epoch; a short exception tells Spark that it did not happen."""
        self._idle.clear()
        self._thread = threading.get_ident()
        try:
            if self.stopping.is_set():
                raise RunStopped("stopped")
            self._run(frame, epoch)
        except RunStopped:
            raise
        except BaseException as problem:
            if self.error is None:
                self.error = self._explained(problem)
            raise RunStopped(type(self.error).__name__) from None
        finally:
            self._thread = None
            self._idle.set()

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

    def give_up(self) -> None:
        """End the query at once: a node was lost."""
        if self.query is not None:
            with contextlib.suppress(Exception):
                self.query.stop()

    def _run(self, frame: DataFrame, epoch: int) -> None:
        started = time.perf_counter()
        self._tune(frame)
        record = self._coordinator.admit(epoch, round(self._clock() * 1e6))
        while True:
            attempt = f"{record.incarnation}.{record.try_}"
            try:
                reports, staged = self._try(frame, record, attempt)
                break
            except Exception as problem:
                for writer in self._sinks.values():
                    writer.discard(epoch, attempt)
                if not self._worth_another_try(problem) or record.try_ + 1 >= _MAX_TRIES:
                    raise
                record = self._coordinator.retry()
        self._publish(record, attempt, staged)
        jobs = self._jobs(reports)
        self._coordinator.commit()
        self._progress.add(
            EpochProgress(
                epoch=epoch,
                tries=record.try_ + 1,
                seconds=time.perf_counter() - started,
                jobs=jobs,
                nodes=len(reports),
                node_memory=sum(report.memory for report in reports.values()),
            )
        )

    def _tune(self, frame: DataFrame) -> None:
        # The frame's session is the query's own clone: the user's settings stay untouched.
        if not self._tuned:
            for name, value in _BATCH_SETTINGS.items():
                frame.sparkSession.conf.set(name, value)
            self._tuned = True

    def _try(
        self, frame: DataFrame, record: EpochRecord, attempt: str
    ) -> tuple[dict[NodeId, NodeReport], Mapping[int, SinkWriter]]:
        with self._frames.build(frame, record) as frames:
            # A sink whose columns nobody has seen yet has nothing to show, and no frame.
            staged = {at: self._sinks[at] for at in frames.sinks}
            self._stage(frames, record, attempt)
            reports = self._coordinator.collect_receipts()
            if self._coordinator.ledger.missing():
                # A sink that read only a part, or a node that lost what it had acknowledged.
                frames.evaluate()
                reports = self._coordinator.collect_receipts()
        self._coordinator.ledger.require_complete()
        self._coordinator.ledger.check_types()
        return reports, staged

    def _stage(self, frames: Frames, record: EpochRecord, attempt: str) -> None:
        if not frames.sinks:
            frames.evaluate()
        for at, sink_frame in frames.sinks.items():
            writer = self._sinks[at]
            try:
                writer.stage(sink_frame, record.epoch, attempt)
            except Exception as problem:
                if isinstance(writer, ForeachBatchWriter) and self._coordinator.failure() is None:
                    raise user_error(
                        f"function of sink {self._names[at]!r}", writer.function, problem
                    ) from problem
                raise

    def _publish(self, record: EpochRecord, attempt: str, staged: Mapping[int, SinkWriter]) -> None:
        for at, writer in staged.items():
            if writer.when == "late":
                try:
                    writer.publish(record.epoch, attempt)
                except Exception as problem:
                    function = getattr(writer, "function", writer.publish)
                    raise user_error(
                        f"function of sink {self._names[at]!r}", function, problem
                    ) from problem
        for writer in staged.values():
            if writer.when == "staged":
                writer.publish(record.epoch, attempt)

    def _jobs(self, reports: Mapping[NodeId, NodeReport]) -> dict[str, JobProgress]:
        receipts = self._coordinator.ledger.receipts
        found = {}
        for at, job in self._plan.jobs:
            mine = [receipt for receipt in receipts if receipt.job == at]
            found[job.name] = JobProgress(
                rows=sum(receipt.rows for receipt in mine),
                keys=sum(receipt.keys for receipt in mine),
                outputs=sum(receipt.outputs for receipt in mine),
                reduce_seconds=sum(receipt.seconds for receipt in mine),
                state_keys=sum(report.state_keys.get(at, 0) for report in reports.values()),
            )
        return found

    def _worth_another_try(self, problem: BaseException) -> bool:
        if isinstance(problem, MissingReceipts):
            return True
        if isinstance(self._coordinator.failure(), BlocksLost):
            return True
        if isinstance(problem, MillstreamError):
            return False
        # Spark gives up a job when a re-run map gave other blocks than before the loss of an
        # executor; the next try starts from scratch.
        return self._coordinator.failure() is None and "indeterminate" in str(problem).lower()

    def _explained(self, problem: BaseException) -> BaseException:
        if self._coordinator.lost is not None:
            return self._coordinator.lost
        if isinstance(problem, MillstreamError | KeyboardInterrupt):
            return problem
        known = self._coordinator.failure()
        if known is not None:
            return known
        failed = EpochFailed(f"Spark could not run the epoch: {str(problem)[:2000]}")
        failed.__cause__ = problem
        return failed
