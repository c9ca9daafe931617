"""The Flight server around a node's state machine."""

from __future__ import annotations

import pickle
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from millstream.node.machine import Block, NodeMachine
from millstream.node.messages import BrokenFeed, End, Feed, NodeReport, Receipts
from millstream.state.blocks import Origin
from millstream.state.pickling import dumps
from millstream.wire.auth import ServerAuth
from millstream.wire.blocks import digest_of
from millstream.wire.calls import server_error

_ITEMS_AT_ONCE = 10_000


def digest_blocks(blocks: Sequence[Block]) -> str:
    """The digest of a feed's blocks, as the feeder computes it."""
    return digest_of(
        ((block.origin.stage, block.origin.task, block.origin.sequence), block.data)
        for block in blocks
    )


class NodeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one node. The machine is used by one thread at a time."""

    def __init__(
        self, address: str, secret: bytes, machine: NodeMachine, stop: Callable[[], None]
    ) -> None:
        super().__init__(address, auth_handler=ServerAuth(secret))
        self._machine = machine
        self._stop = stop
        self._lock = threading.Lock()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            feed: Feed = pickle.loads(descriptor.command)
            with self._lock:
                self._machine.admit(feed)
            blocks, end = _receive(reader)
            with self._lock:
                outputs = self._machine.finish(feed, blocks, end)
        except flight.FlightError:
            raise
        except Exception as problem:
            raise server_error(problem) from problem
        schema = outputs[0].schema if outputs else pa.schema([])
        writer.begin(schema)
        for batch in outputs:
            writer.write_batch(batch)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            body = pickle.loads(action.body)
            return [pickle.dumps(self._act(action.type, body), 5)]
        except Exception as problem:
            raise server_error(problem) from problem

    def _act(self, name: str, body: Any) -> Any:
        if name == "ping":
            return self._machine.node
        if name == "stop":
            threading.Timer(0.05, self._stop).start()
            return None
        with self._lock:
            if name == "assign":
                return self._machine.assign(body)
            if name == "receipts":
                return Receipts(self._machine.receipts(*body), self._report())
            if name == "seal":
                return self._machine.seal(body)
            if name == "get":
                return dumps(self._machine.get(*body))
        raise BrokenFeed(f"a node has no action {name!r}")

    def _report(self) -> NodeReport:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return NodeReport(
            state_keys=self._machine.state_keys(),
            memory=pages * resource.getpagesize(),
        )

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        """All committed items of a job, as pickled batches."""
        job: int = pickle.loads(ticket.ticket)
        with self._lock:
            items = [(key, dumps(value)) for key, value in self._machine.items(job)]
        schema = pa.schema([("items", pa.binary())])

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(items), _ITEMS_AT_ONCE):
                part = pickle.dumps(items[start : start + _ITEMS_AT_ONCE], 5)
                yield pa.record_batch([pa.array([part], pa.binary())], schema=schema)

        return flight.GeneratorStream(schema, batches())


def _receive(reader: Any) -> tuple[list[Block], End]:
    blocks: list[Block] = []
    for chunk in reader:
        if chunk.data is not None:
            blocks.extend(_blocks(chunk.data))
        if chunk.app_metadata is not None:
            return blocks, pickle.loads(chunk.app_metadata)
    raise BrokenFeed("a feed broke off before its end marker; the task will run again")


def _blocks(batch: pa.RecordBatch) -> Iterator[Block]:
    places = zip(
        batch.column("stage").to_pylist(),
        batch.column("task").to_pylist(),
        batch.column("sequence").to_pylist(),
        batch.column("block"),
        strict=True,
    )
    for stage, task, sequence, data in places:
        yield Block(Origin(stage, task, sequence), data.as_buffer())
