"""Every public function shows how it is used, and what it shows is executed."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream as ms
from millstream.flow.streams import JobStream, KeyedStream, Stream, WindowedStream

# The example of a run is executed in tests/spark; what needs a checkpoint is shown in the guide.
ELSEWHERE = {"run", "start", "read_state"}


def public() -> Iterator[tuple[str, Any]]:
    for module, prefix in ((ms, ""), (ms.read, "read."), (ms.write, "write.")):
        names = ms.__all__ if module is ms else vars(module)
        for name in names:
            value = getattr(module, name)
            if inspect.isfunction(value) and (module is ms or value.__module__ == module.__name__):
                if not name.startswith("_"):
                    yield prefix + name, value
    for kind in (Stream, KeyedStream, WindowedStream, JobStream, ms.Workflow):
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", value


PUBLIC = dict(public())


def example(name: str) -> doctest.DocTest:
    flow = ms.Workflow("docs")
    orders = flow.source("orders", ms.read.json("in/", schema="user string, amount bigint"))
    names = {"ms": ms, "pa": pa, "pc": pc, "timedelta": timedelta, "flow": flow, "orders": orders}
    found = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs=names)
    assert len(found) == 1 and found[0].examples, f"{name} shows no example"
    return found[0]


def run_example(name: str) -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example(name), out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


@pytest.mark.parametrize("name", sorted({*PUBLIC} - ELSEWHERE))
def test_the_example_of_a_public_function_runs(name: str) -> None:
    run_example(name)
