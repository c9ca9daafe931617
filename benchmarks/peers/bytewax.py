"""Bytewax: a cluster of two processes with a worker each, recovery on.

Workers of one process share the lock of its interpreter, so there is a process for each core. Files
are the source's partitions, which workers share. Each run starts its own cluster, as nothing is
compiled while Bytewax runs.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax._bytewax import cluster_main
from bytewax.connectors.files import DirSource
from bytewax.dataflow import Dataflow
from bytewax.operators import KeyedStream, StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir

from benchmarks.peers.protocol import Ran, Task

PROCESSES = 2
LINES = 10_000  # that a partition reads at once
_PATIENCE = 20.0
_Words = Callable[[KeyedStream], KeyedStream]


class _Last(StatelessSinkPartition):
    """Keeps the last count of every word, and writes all of them at the end."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._counts: dict[str, int] = {}

    def write_batch(self, items: Iterable[tuple[str, int]]) -> None:
        self._counts.update(items)

    def close(self) -> None:
        with open(self._file, "w", encoding="utf-8") as out:
            out.writelines(f"{word}\t{n}\n" for word, n in self._counts.items())


class _Nothing(StatelessSinkPartition):
    def write_batch(self, items: Iterable[object]) -> None:
        pass


class _Sink(DynamicSink):
    def __init__(self, answer: str) -> None:
        self._answer = answer

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
        return _Last(f"{self._answer}.{worker_index}") if self._answer else _Nothing()


class _Count(StatefulBatchLogic):
    """The count of a word, and so many bytes more."""

    def __init__(self, n: int, payload: int) -> None:
        self.n = n
        self._payload = payload
        self._bytes = b""

    def on_batch(self, values: list[int]) -> tuple[Iterable[int], bool]:
        self.n += sum(values)
        self._bytes = bytes([self.n % 256]) * self._payload
        return (self.n,), StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[int, bytes]:
        return self.n, self._bytes


def _split(lines: list[str]) -> Iterator[tuple[str, int]]:
    return ((word, 1) for line in lines for word in line.split())


def _by_batch(words: KeyedStream, payload: int = 0) -> KeyedStream:
    return op.stateful_batch(
        "count", words, lambda resumed: _Count(resumed[0] if resumed else 0, payload)
    )


def _add(n: int | None, one: int) -> tuple[int, int]:
    total = (n or 0) + one
    return total, total


def _by_value(words: KeyedStream) -> KeyedStream:
    return op.stateful_map("count", words, _add)


def _flow(task: Task, count: _Words) -> Dataflow:
    flow = Dataflow("words")
    lines = op.input("lines", flow, DirSource(Path(task.folder), "[!.]*", batch_size=LINES))
    words: Any = op.flat_map_batch("split", lines, _split)
    op.output("out", count(words), _Sink(task.answer))
    return flow


def _serve(task: Task, count: _Words, addresses: list[str], number: int) -> None:
    cluster_main(
        _flow(task, count),
        addresses,
        number,
        epoch_interval=timedelta(seconds=task.interval),
        recovery_config=RecoveryConfig(Path(task.work)),
        worker_count_per_proc=1,
    )


def _run(task: Task, count: _Words) -> Ran:
    Path(task.work).mkdir(parents=True)
    init_db_dir(Path(task.work), PROCESSES)
    ports = _free_ports(PROCESSES)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_serve, args=(task, count, addresses, number))
        for number in range(PROCESSES)
    ]
    began = time.perf_counter()
    *others, last = processes
    for process, port in zip(others, ports, strict=False):
        process.start()
        _await_listening(port)
    last.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes {[process.exitcode for process in processes]}")
    if task.answer:
        parts = [Path(f"{task.answer}.{number}") for number in range(PROCESSES)]
        Path(task.answer).write_text("".join(part.read_text() for part in parts))
    return Ran(seconds=seconds)


def _await_listening(port: int) -> None:
    """Wait until a process accepts others: one that comes too early waits for a second."""
    deadline = time.monotonic() + _PATIENCE
    while f"0100007F:{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing listens on port {port}")
        time.sleep(0.002)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _stateful_batch(task: Task) -> Ran:
    payload = int(str(task.options.get("payload", 0)))
    return _run(task, lambda words: _by_batch(words, payload))


FORMS = {"stateful_map": lambda task: _run(task, _by_value), "stateful_batch": _stateful_batch}
PACKAGES = ("bytewax",)
