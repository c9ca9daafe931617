"""Reads of state under load, while a run is scaled: every answer is what the sink has."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.api import contract as c
from millstream.api.client import ApiClient, RefusedError
from millstream.spark.handle import Run
from millstream.wire.run_registry import RunRegistry
from tests.spark.conftest import spark
from tests.spark.endless import await_owners, awaited, count

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = Path(sys.executable).with_name("millstream")
KEYS = 500
UNKNOWN = 10**6  # a key that no row has
_PAUSE = 0.1  # seconds, after more requests than a token may send
SEVERAL = 40  # keys of a command


@dataclass(frozen=True)
class Answer:
    """The values of keys, and the epoch of which they are said to be."""

    reader: str
    epoch: int
    values: Mapping[int, int | None]


class Sink:
    """What was published: the count of a key after each epoch."""

    def __init__(self, folder: Path) -> None:
        self._epochs: dict[int, list[int]] = defaultdict(list)
        self._counts: dict[int, list[int]] = defaultdict(list)
        for path in sorted(folder.glob("epoch=*")):
            self.newest = int(path.name.partition("=")[2])
            files = [str(file) for file in path.glob("*.parquet")]
            for row in ds.dataset(files, partitioning=None).to_table().to_pylist():
                self._epochs[row["key"]].append(self.newest)
                self._counts[row["key"]].append(row["value"])

    def value(self, key: int, epoch: int) -> int | None:
        """The count of a key as of an epoch."""
        at = bisect_right(self._epochs[key], epoch)
        return self._counts[key][at - 1] if at else None


class Readers:
    """Threads that read keys, each in its way, until they are left; keys come in random order."""

    def __init__(self, reads: Mapping[str, Callable[[list[int]], c.StateItems]]) -> None:
        self.answers: list[Answer] = []
        self.problems: list[Exception] = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._read_on, args=(name, read))
            for name, read in reads.items()
        ]

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in self._threads:
                thread.join()

    def have(self, commands: int) -> bool:
        """Whether there are so many answers of commands, or a problem."""
        return bool(self.problems) or self.count("command") >= commands

    def count(self, reader: str) -> int:
        return sum(answer.reader == reader for answer in list(self.answers))

    def _read_on(self, name: str, read: Callable[[list[int]], c.StateItems]) -> None:
        choice = random.Random(name)
        try:
            while not self._end.is_set():
                try:
                    found = read(choice.sample(range(KEYS), KEYS))
                except RefusedError as refused:
                    if refused.status != HTTPStatus.TOO_MANY_REQUESTS:
                        raise
                    self._end.wait(_PAUSE)
                    continue
                values = {item.key: item.value["n"] if item.found else None for item in found.items}
                self.answers.append(Answer(name, found.epoch, values))
        except Exception as problem:
            self.problems.append(problem)


def by_command(keys: list[int]) -> c.StateItems:
    texts = [str(key) for key in (UNKNOWN, *keys[:SEVERAL])]
    done = subprocess.run(
        [COMMAND, "state", "get", "read", "count", *texts, "--json"],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr  # one of the keys has no state
    return msgspec.json.decode(done.stdout, type=c.StateItems)


def readers_of(client: ApiClient) -> Readers:
    def get(keys: list[int]) -> c.StateItems:
        return client.get("/state/get", c.StateItems, job="count", key=keys[0])

    def get_many(keys: list[int]) -> c.StateItems:
        request = c.GetManyRequest(job="count", keys=[str(key) for key in (UNKNOWN, *keys)])
        return client.post("/state/get-many", request, c.StateItems)

    # Of many keys, because their nodes commit one after the other.
    return Readers({"get": get, "many": get_many, "many more": get_many, "command": by_command})


@contextmanager
def running(spark: SparkSession, folder: Path) -> Iterator[Run]:
    """A workflow whose every epoch counts all keys on."""
    flow = ms.Workflow("read")
    rows = flow.source("rows", ms.read.rate(rows_per_second=3000))
    counts = rows.map_reduce("count", map=_keyed, reduce=count)
    counts.sink("out", ms.write.parquet(str(folder)))
    with ms.start(flow, spark=spark, nodes=2, slots=64, replicas=1, progress=False) as run:
        awaited(run, lambda: run.status().committed >= 2)
        yield run


def _keyed(row: Any) -> list[tuple[int, int]]:
    return [(row.value % KEYS, 1)]


def test_keys_that_are_read_during_a_rescale_have_the_values_that_the_sink_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path / "counts") as run:
        [access] = [each.api for each in RunRegistry.of_user().runs() if each.workflow == "read"]
        assert access is not None
        readers = readers_of(ApiClient(access.url, access.viewer))
        rescales = []
        with readers.reading():
            for nodes in (4, 2):
                before = run.status().committed
                ApiClient(access.url, access.operator).post(
                    "/scale", c.ScaleRequest(nodes=nodes), c.Change
                )
                await_owners(run, nodes)
                rescales.append(range(before, run.status().committed + 1))
                awaited(run, partial(readers.have, readers.count("command") + 2))
        assert readers.problems == []
        run.stop()

    sink = Sink(tmp_path / "counts")
    for answer in readers.answers:
        expected = {key: sink.value(key, answer.epoch) for key in answer.values}
        assert answer.epoch <= sink.newest
        assert answer.values == expected, (answer.reader, answer.epoch, rescales)
    for epochs in rescales:
        read = {answer.epoch for answer in readers.answers if answer.epoch in epochs}
        assert len(read) >= 3, (epochs, read)
    assert readers.count("get") >= 50 and readers.count("many") >= 50
