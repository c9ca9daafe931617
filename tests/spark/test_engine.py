"""The engine with stand-ins for Spark: whatever fails around an epoch, the run ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, PropertyMock

from millstream.log_context import DRIVER, LogContext
from millstream.spark.engine import Engine, RunStoppedError


def engine_of(**options: Any) -> Engine:
    scans: Any = SimpleNamespace(spark_plan=lambda: None)
    context = LogContext(workflow="flow", node=DRIVER, epoch=lambda: 0)
    coordinator: Any = SimpleNamespace(state_lost=None, failure=lambda: None, log_context=context)
    plan: Any = SimpleNamespace(name="flow", sinks=[])
    unused: Any = None
    return Engine(plan, unused, scans, coordinator, {}, unused, overlap=True, **options)


def end_of(engine: Engine, frame: Any) -> BaseException:
    """What Spark gets from the callback of an epoch, which must return."""
    found: list[BaseException] = []

    def call() -> None:
        try:
            engine(frame, 0)
        except BaseException as problem:
            found.append(problem)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert found, "the callback has not returned"
    engine.close()
    return found[0]


def test_an_epoch_that_cannot_be_handed_over_is_not_waited_for() -> None:
    frame = MagicMock()
    type(frame).sparkSession = PropertyMock(side_effect=OSError("the session has stopped"))
    engine = engine_of()

    assert isinstance(end_of(engine, frame), OSError)
    assert engine.is_idle


def test_an_error_that_cannot_be_explained_ends_the_run() -> None:
    def successor(_: BaseException) -> None:
        raise ValueError("nor can the chain be read")

    frame = MagicMock()
    context = frame.sparkSession.sparkContext._jsc.sc.return_value
    context.setLocalProperties.side_effect = OSError("the first error")
    engine = engine_of(successor=successor)

    assert isinstance(end_of(engine, frame), RunStoppedError)
    assert str(engine.error) == "the first error"
    assert engine.is_idle
