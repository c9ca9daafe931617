from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

import millstream
from millstream.log_context import TEXT, LogContext, inheriting, show_context, within_job
from millstream.sim import World
from millstream.wire.flight_net import FlightNet
from tests.coordinator.clusters import Run

log = logging.getLogger("millstream")
FIELDS = ("workflow", "epoch", "job", "node")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def fields(self) -> list[tuple[object, ...]]:
        return [tuple(vars(record)[name] for name in FIELDS) for record in self.records]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    log.addHandler(lines)
    yield lines
    log.removeHandler(lines)


def context(workflow: str, epoch: int = 3) -> LogContext:
    return LogContext(workflow=workflow, node="driver", epoch=lambda: epoch)


def test_a_record_has_the_context_of_its_thread(lines: Lines) -> None:
    log.warning("before")
    with context("words").entered(), within_job("count"):
        log.warning("within")
        thread = threading.Thread(target=inheriting(lambda: log.warning("in a thread")))
        thread.start()
        thread.join()
    log.warning("after")

    within = ("words", 3, "count", "driver")
    assert lines.fields() == [("", -1, "", ""), within, within, ("", -1, "", "")]


def test_the_epoch_is_that_of_the_moment(lines: Lines) -> None:
    epochs = iter([4, 5])
    with LogContext(workflow="words", node="n1", epoch=lambda: next(epochs)).entered():
        log.warning("one")
        log.warning("two")

    assert [epoch for _, epoch, _, _ in lines.fields()] == [4, 5]


def test_threads_without_a_context_have_that_of_the_only_run(lines: Lines) -> None:
    words, clicks = context("words"), context("clicks")
    words.open()
    log.warning("one run")
    clicks.open()
    log.warning("two runs: it could be either")
    words.close()
    log.warning("one run again")
    clicks.close()
    clicks.close()
    log.warning("none")

    assert [workflow for workflow, *_ in lines.fields()] == ["words", "", "clicks", ""]


def test_a_handler_shows_the_context_also_of_other_loggers() -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    show_context(handler)
    users = logging.getLogger("users")
    users.addHandler(handler)
    try:
        with context("words").entered(), within_job("count"):
            users.warning("odd %s", "key")
    finally:
        users.removeHandler(handler)

    assert text.getvalue().endswith(
        "WARNING odd key [workflow=words epoch=3 job=count node=driver]\n"
    )
    assert all(f"%({name})s" in TEXT for name in FIELDS)


def test_a_program_that_configures_no_logging_shows_the_context() -> None:
    program = (
        "import logging; from millstream.log_context import LogContext, show_context\n"
        "LogContext(workflow='words', node='5f0c9a1e', epoch=lambda: 4).open()\n"
        "show_context()\n"
        "logging.getLogger('users').warning('odd key')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    shown = "WARNING odd key [workflow=words epoch=4 job= node=5f0c9a1e]\n"
    assert done.stderr.endswith(shown)


def test_the_logging_handler_of_opentelemetry_exports_the_context() -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it moves to another package
        handler = LoggingHandler(logger_provider=provider)
    log.addHandler(handler)
    try:
        with context("words").entered(), within_job("count"):
            log.warning("odd key")
    finally:
        log.removeHandler(handler)
        provider.shutdown()

    [exported] = exporter.get_finished_logs()
    attributes = exported.log_record.attributes or {}
    assert tuple(attributes[name] for name in FIELDS) == ("words", 3, "count", "driver")


def test_the_epoch_of_a_coordinator_is_the_one_under_way_or_the_newest_committed() -> None:
    seen = []

    def main() -> None:
        seen.append(run.coordinator.log_context.epoch())
        run.epoch()
        run.at["staged"] = lambda: seen.append(run.coordinator.log_context.epoch())
        run.epoch()
        seen.append(run.coordinator.log_context.epoch())

    with World(3) as world:
        run = Run(world)
        before = run.coordinator.log_context.epoch()
        run.main(main)

    assert (before, seen) == (-1, [-1, 1, 1])


def test_work_that_a_process_spawns_has_its_context(lines: Lines) -> None:
    net, done = FlightNet(b"secret"), threading.Event()

    def work() -> None:
        log.warning("spawned")
        done.set()

    with context("words").entered():
        net.spawn(work, "work")
    assert done.wait(10.0)

    assert [workflow for workflow, *_ in lines.fields()] == ["words"]


def test_all_modules_log_to_the_one_logger_with_the_context() -> None:
    root = Path(millstream.__file__).parent
    names = {
        name
        for path in root.rglob("*.py")
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text())
        if "cli" not in path.parts
    }

    assert names == {'"millstream"'}
