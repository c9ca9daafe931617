from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from millstream.coordinator.epochs import run_epoch
from millstream.elastic.events import EventLog
from millstream.observe.progress import EpochProgress, JobProgress
from millstream.observe.tracing import Tracing
from millstream.sim import World
from millstream.sim.workload import records
from tests.coordinator.clusters import N1, Run

PHASES = ["admit", "run", "receipts", "callbacks", "commit", "publish", "seal"]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


class Scene:
    """A simulated run of two nodes that is traced."""

    def __init__(self, world: World) -> None:
        self.run = Run(world, nodes=2)
        self.tracing = Tracing("words", lambda: round(world.now * 1e9))
        self.run.coordinator.events.listen(self.tracing.add_event)

    def epoch(self) -> None:
        coordinator, epoch = self.run.coordinator, self.run.next_epoch
        body = self.run.body(records(self.run.input, 2))
        with self.tracing.epoch(epoch, coordinator.ledger.incarnation) as traced:
            result = run_epoch(coordinator, epoch, 0, body, traced.add_phase)
            job = JobProgress(rows=10, keys=5, outputs=5, reduce_seconds=0.1, state_keys=7, late=2)
            nodes = len(result.reports)
            traced.commit(EpochProgress(epoch, 1, 0.5, {"first": job}, nodes=nodes))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(3) as world:
        yield Scene(world)


def test_an_epoch_is_a_span_with_its_phases_as_children(
    scene: Scene, exporter: InMemorySpanExporter
) -> None:
    def main() -> None:
        scene.epoch()
        scene.epoch()

    scene.run.main(main)
    spans = exporter.get_finished_spans()

    first, second = named(spans, "millstream.epoch")
    assert first.context.trace_id != second.context.trace_id
    assert dict(second.attributes or {}) == {
        "millstream.workflow": "words",
        "millstream.incarnation": scene.run.coordinator.ledger.incarnation,
        "millstream.epoch": 1,
        "millstream.tries": 1,
        "millstream.rows": 10,
        "millstream.rejected": 2,
        "millstream.nodes": 2,
    }
    children = [span for span in spans if span.parent == second.context]
    assert [span.name for span in children] == [f"millstream.epoch.{phase}" for phase in PHASES]
    # One after the other, without gaps, from the beginning of the epoch to its end.
    times = [(span.start_time or 0, span.end_time or 0) for span in children]
    assert [end for _, end in times[:-1]] == pytest.approx([start for start, _ in times[1:]])
    assert times[0][0] == pytest.approx(second.start_time)
    assert times[-1][1] == pytest.approx(second.end_time)
    assert max(end - start for start, end in times) > 0


def test_a_lost_node_is_an_event_of_the_epoch_and_scaling_in_between_a_span(
    scene: Scene, exporter: InMemorySpanExporter
) -> None:
    def main() -> None:
        scene.epoch()
        scene.run.coordinator.scaling.scale_to(1)
        scene.run.at["staged"] = lambda: scene.run.world.crash(N1)
        scene.epoch()

    scene.run.main(main)
    spans = exporter.get_finished_spans()

    [scaled] = named(spans, "millstream.scale")
    assert scaled.parent is None and scaled.attributes is not None
    assert scaled.attributes["millstream.text"] == "from 2 to 1 nodes"
    assert scaled.attributes["millstream.event.nodes"] == 1
    assert scaled.attributes["millstream.epoch"] == 0
    first, second = named(spans, "millstream.epoch")
    assert not first.events
    lost = [event for event in second.events if event.name == "millstream.lost"]
    assert [event.attributes["millstream.event.node"] for event in lost if event.attributes] == [N1]


def test_the_span_of_a_failed_epoch_has_the_error(exporter: InMemorySpanExporter) -> None:
    tracing = Tracing("words")

    with pytest.raises(ValueError, match="bad"), tracing.epoch(4, 1) as traced:
        try:
            raise ValueError("bad")
        except ValueError as problem:
            traced.fail(problem)
            raise

    [span] = exporter.get_finished_spans()
    assert span.status.status_code == StatusCode.ERROR
    assert span.status.description == "ValueError: bad"
    assert [event.name for event in span.events] == ["exception"]


def test_spans_of_callbacks_and_log_records_belong_to_the_epoch(
    exporter: InMemorySpanExporter,
) -> None:
    with Tracing("words").epoch(4, 1):
        trace.get_tracer("database").start_span("insert").end()

    insert, epoch = exporter.get_finished_spans()
    assert insert.parent == epoch.context


def test_a_provider_that_is_set_while_the_workflow_runs_gets_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    tracing, provider = Tracing("words"), trace.get_tracer_provider()
    log = EventLog(lambda: 1.0, lambda: 3)
    log.listen(tracing.add_event)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)

    with tracing.epoch(3, 1) as untraced:
        untraced.add_phase("run", 1.0)
        log.add("lost", "node n1 was declared dead")
    assert exporter.get_finished_spans() == ()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with tracing.epoch(4, 1):
        pass

    assert [span.name for span in exporter.get_finished_spans()] == ["millstream.epoch"]


def test_without_a_provider_nothing_is_imported() -> None:
    program = (
        "import sys; from millstream.observe.tracing import Tracing\n"
        "with Tracing('words').epoch(0, 1) as traced: traced.add_phase('run', 1.0)\n"
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout.strip(), done.stderr) == ("[]", "")
