"""The thread in which epochs run while Spark plans the next one.

Spark's query calls ``foreachBatch``, then writes its commit log, asks the sources for new offsets,
writes its offset log, and plans: about a third of a small epoch. With *overlap* the callback hands
the epoch over and returns before it has ended, and Spark does all that meanwhile. Epochs still run
one after the other. What Spark has logged says nothing about what is committed: a restart resumes
from our own chain of manifests, with Spark's logs up to that epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ThreadContext:
    """What Spark keeps by thread: the active session, and the job group that a stop cancels."""

    session: SparkSession
    properties: Any

    @classmethod
    def of_caller(cls, session: SparkSession) -> ThreadContext:
        """The context of the calling thread, which is Spark's own."""
        return cls(session, session.sparkContext._jsc.sc().getLocalProperties().clone())

    def enter(self) -> None:
        """Make it that of the calling thread."""
        self.session.sparkContext._jsc.sc().setLocalProperties(self.properties)
        jvm: Any = self.session._jvm
        jvm.SparkSession.setActiveSession(self.session._jsparkSession)


class EpochThread:
    """Runs what it is handed, one at a time; a daemon, because a run can be abandoned."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: Callable[[], None] | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def hand_over(self, work: Callable[[], None]) -> None:
        """Run something; the caller sees to it that nothing else is running."""
        with self._changed:
            assert self._work is None
            self._work = work
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millstream-epochs", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, when it has finished what it is running."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._is_closed)
                work, self._work = self._work, None
            if work is None:
                return
            work()


class ReturnTimes:
    """When the callback shall return: just in time for Spark to have planned when the epoch ends.

    The offsets of the next epoch are fixed soon after the callback returned, and rows that come
    later have to wait for the one after it. So the callback stays for as long as the longer of the
    last two epochs took, less the shortest time that Spark has needed lately. Times are in seconds.
    """

    def __init__(self) -> None:
        self._epochs: deque[float] = deque(maxlen=2)
        self._planning: deque[float] = deque(maxlen=8)
        self._returned: float | None = None

    def called(self, now: float) -> None:
        """Note that Spark calls."""
        if self._returned is not None:
            self._planning.append(now - self._returned)

    def returned(self, now: float) -> None:
        """Note that the callback returns."""
        self._returned = now

    def ended(self, seconds: float) -> None:
        """Note how long an epoch took."""
        self._epochs.append(seconds)

    @property
    def stay(self) -> float:
        """How long the callback stays with an epoch that it has handed over."""
        if not self._epochs or not self._planning:
            return 0.0
        return max(0.0, max(self._epochs) - min(self._planning))
