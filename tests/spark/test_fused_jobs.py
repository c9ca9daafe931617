"""Jobs that another one leads: what is known of their rows, and where their state is."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.flow.plan import Plan, plan
from millstream.spark.compile import _declared
from millstream.spark.handle import Run

MINUTE = timedelta(minutes=1)
OUTPUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])


def size(key: Any, values: list[Any], window: Any) -> Any:
    yield key, len(values)


def two_jobs() -> Plan:
    flow = ms.Workflow("led")
    rows = flow.source("rows", ms.read.rate())
    for number, name in enumerate(("leader", "led"), start=1):
        job = rows.map_reduce(
            name,
            key="value",
            time="timestamp",
            reduce=size,
            window=ms.tumbling(number * MINUTE),
            output=OUTPUT,
        )
        job.sink(f"{name}_out", ms.write.callback(print))
    return plan(flow)


def test_the_columns_of_a_led_job_are_those_that_it_declares() -> None:
    planned = two_jobs()
    sinks = [at for at, _ in planned.sinks]

    assert dict(_declared(planned, sinks)) == dict.fromkeys(sinks, OUTPUT)


def test_the_state_of_a_led_job_is_that_of_its_leader() -> None:
    nothing: Any = None
    cleanup = contextlib.ExitStack()
    run = Run(two_jobs(), nothing, nothing, nothing, nothing, nothing, cleanup, nothing, nothing)

    with pytest.raises(
        ConfigError, match=r"read state\('leader'\), or define 'led' with share=False"
    ):
        run.state("led")
