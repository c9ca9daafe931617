"""The JVM of Spark's driver, and the errors when it has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

from millstream.errors import MillstreamError

BROKEN = (Py4JError, OSError, EOFError)
"""What calls into a JVM that has ended raise."""


class SparkLostError(MillstreamError):
    """The JVM of Spark's driver ended, and with it the executors and the nodes."""

    def __init__(self, checkpoint: str | None) -> None:
        super().__init__(checkpoint)
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        advice = (
            "this run had no checkpoint, so its state is lost: start it again, with checkpoint="
            if self.checkpoint is None
            else f"start the workflow again with checkpoint={self.checkpoint!r}: it resumes from "
            "the last checkpoint"
        )
        return (
            "the JVM of Spark's driver ended while the workflow was running (it was killed, or ran "
            "out of memory), and executors and nodes ended with it. The epoch under way was not "
            f"committed; {advice}"
        )


class Gateway:
    """The connection to the JVM of one session."""

    def __init__(self, context: SparkContext, checkpoint: str | None = None) -> None:
        gateway = context._gateway
        assert gateway is not None  # it is there as long as the session is
        self._gateway = gateway
        self._checkpoint = checkpoint

    @property
    def is_lost(self) -> bool:
        """Whether the JVM does not answer a call."""
        try:
            self._gateway.jvm.java.lang.System.nanoTime()
        except BROKEN:
            return True
        return False

    def close(self) -> None:
        """Close the connections to the JVM."""
        self._gateway.close()

    def loss(self) -> SparkLostError | None:
        """The error of a run whose JVM has ended, if it has."""
        return SparkLostError(self._checkpoint) if self.is_lost else None

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise ``SparkLostError`` for what failed because the JVM has ended."""
        try:
            yield
        except Exception as problem:
            lost = None if isinstance(problem, SparkLostError) else self.loss()
            if lost is None:
                raise
            raise lost from problem


def stop_session(spark: SparkSession) -> None:
    """Stop a session; if its JVM has ended, let the next session start another."""
    context = spark.sparkContext
    gateway = Gateway(context)
    if not gateway.is_lost:
        spark.stop()
        return
    context._jsc = None  # nothing is left to stop there
    context.stop()
    with contextlib.suppress(*BROKEN):
        gateway.close()
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
