"""The traces of a workflow that runs on real Spark."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def failing(rows: list[object], epoch: int) -> None:
    if epoch == 2:
        raise ValueError("the callback of epoch 2")


def test_every_epoch_is_a_span_and_a_failed_one_has_the_error_of_the_user(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    flow = ms.Workflow("traced")
    numbers = flow.source("numbers", ms.read.replay([{"n": 1}] * 60, rows_per_epoch=20))
    counts = numbers.map_reduce("count", map=lambda n: [(n, 1)], reduce=ms.count())
    counts.sink("out", ms.write.callback(failing))

    with pytest.raises(ms.MillstreamError, match="the callback of epoch 2"):
        ms.run(flow, spark=spark, nodes=1, slots=16, progress=False)

    spans = exporter.get_finished_spans()
    epochs = [span for span in spans if span.name == "millstream.epoch"]
    found = [span.attributes for span in epochs if span.attributes is not None]
    assert [each["millstream.epoch"] for each in found] == [0, 1, 2]
    assert [each.get("millstream.rows") for each in found] == [20, 20, None]
    assert {each["millstream.workflow"] for each in found} == {"traced"}
    phases = [span.name for span in spans if span.parent == epochs[1].context]
    assert phases[0] == "millstream.epoch.admit" and phases[-1] == "millstream.epoch.seal"
    assert [span.status.status_code for span in epochs] == [
        *(StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR)
    ]
    assert "the callback of epoch 2" in str(epochs[2].status.description)
