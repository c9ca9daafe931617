"""Traces of a run, through the API of OpenTelemetry: an epoch is a span, its phases are children.

What happens to nodes and slots becomes an event of the epoch's span, or, between two epochs, a span
of its own. The user chooses the SDK and the exporter. Nothing is imported here: a program that has
set a tracer provider has imported the API, and without a provider there is nothing to record.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.elastic.events import Event
from millstream.observe.progress import EpochProgress

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_SCOPE = "millstream"
_EPOCH = "millstream.epoch"

Attributes = dict[str, str | bool | int | float]


class EpochTrace:
    """The trace of the epoch under way."""

    def add_phase(self, phase: str, seconds: float) -> None:
        """Add a phase that ends now."""

    def commit(self, report: EpochProgress) -> None:
        """Add what the committed epoch counted."""

    def fail(self, problem: BaseException) -> None:
        """Add why the epoch failed."""


class Tracing:
    """Records the spans of a run; without a tracer provider, it does nothing."""

    def __init__(self, workflow: str, clock: Callable[[], int] = time.time_ns) -> None:
        """``clock`` is in nanoseconds since 1970."""
        self._workflow = workflow
        self._clock = clock
        self._lock = threading.Lock()  # nothing may be added to a span that has ended
        self._under_way: Span | None = None

    @contextmanager
    def epoch(self, epoch: int, incarnation: int) -> Iterator[EpochTrace]:
        """Record an epoch, which is the current span of the calling thread meanwhile."""
        tracer = _tracer()
        if tracer is None:
            yield EpochTrace()
            return
        attributes: Attributes = {
            "millstream.workflow": self._workflow,
            "millstream.incarnation": incarnation,
            "millstream.epoch": epoch,
        }
        with tracer.start_as_current_span(
            _EPOCH,
            attributes=attributes,
            start_time=self._clock(),
            end_on_exit=False,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            self._under_way = span
            try:
                yield _RecordedEpoch(tracer, span, self._clock)
            finally:
                with self._lock:
                    self._under_way = None
                span.end(self._clock())

    def add_event(self, event: Event) -> None:
        """Record what happened to nodes or slots."""
        tracer = _tracer()
        if tracer is None:
            return
        name = f"millstream.{event.kind}"
        attributes = {"millstream.text": event.text, **_attributes_of(event.facts)}
        with self._lock:
            if self._under_way is not None:
                self._under_way.add_event(name, attributes, self._clock())
                return
        attributes |= {"millstream.workflow": self._workflow, "millstream.epoch": event.epoch}
        now = self._clock()
        tracer.start_span(name, attributes=attributes, start_time=now).end(now)


class _RecordedEpoch(EpochTrace):
    """An epoch that has a span."""

    def __init__(self, tracer: Tracer, span: Span, clock: Callable[[], int]) -> None:
        self._tracer = tracer
        self._span = span
        self._clock = clock

    def add_phase(self, phase: str, seconds: float) -> None:
        end = self._clock()
        name = f"{_EPOCH}.{phase.replace(' ', '_')}"
        self._tracer.start_span(name, start_time=end - round(seconds * 1e9)).end(end)

    def commit(self, report: EpochProgress) -> None:
        self._span.set_attributes(
            {
                "millstream.tries": report.tries,
                "millstream.rows": report.rows,
                "millstream.rejected": report.rejected,
                "millstream.nodes": report.nodes,
            }
        )

    def fail(self, problem: BaseException) -> None:
        from opentelemetry.trace import StatusCode  # whoever made the span has imported it

        self._span.record_exception(problem)
        self._span.set_status(StatusCode.ERROR, f"{type(problem).__name__}: {problem}")


def _tracer() -> Tracer | None:
    """A tracer of the program's provider, if it has set one."""
    api: Any = sys.modules.get("opentelemetry.trace")
    provider_of = getattr(api, "get_tracer_provider", None)  # None while it is being imported
    if provider_of is None:
        return None
    provider = provider_of()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    tracer: Tracer = provider.get_tracer(_SCOPE)
    return tracer


def _attributes_of(facts: Mapping[str, object]) -> Attributes:
    """The facts of an event; attributes have plain values, and no nested ones."""
    return {
        f"millstream.event.{name}": value if isinstance(value, bool | int | float) else str(value)
        for name, value in facts.items()
    }
