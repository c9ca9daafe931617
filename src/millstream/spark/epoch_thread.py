"""The thread in which epochs run, and end while Spark plans the next one.

Spark's query calls ``foreachBatch``, then writes its commit log, asks the sources for new offsets,
writes its offset log, and plans: about a third of a small epoch. With *overlap* the callback hands
the epoch over, and returns when Spark has evaluated it: its rows are counted then. Receipts,
callbacks, the commit and the seal follow, while Spark logs and plans. Epochs still run one after
the other. What Spark has logged says nothing about what is committed: a restart resumes from our
own chain of manifests, with Spark's logs up to that epoch.
"""

from __future__ import annotations

import threading
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
        # At once: an epoch that could not be handed over would never end.
        threading.Thread(target=self._run, name="millstream-epochs", daemon=True).start()

    def hand_over(self, work: Callable[[], None]) -> None:
        """Run something; the caller sees to it that nothing else is running."""
        with self._changed:
            assert self._work is None
            self._work = work
            self._changed.notify_all()

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
