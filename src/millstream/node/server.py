"""The Flight server around a node."""

from __future__ import annotations

import pickle
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from millstream.node.messages import Feed
from millstream.node.service import NodeService
from millstream.node.units import Block
from millstream.wire.auth import ServerAuth
from millstream.wire.blocks import digest_of
from millstream.wire.calls import server_error


def digest_blocks(blocks: Sequence[Block]) -> str:
    """The digest of a feed's blocks, as the feeder computes it."""
    return digest_of(
        ((block.origin.stage, block.origin.task, block.origin.sequence), block.data)
        for block in blocks
    )


def memory() -> int:
    """The resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class NodeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Lets tasks, peers and the coordinator reach a node."""

    def __init__(self, address: str, secret: bytes, service: NodeService) -> None:
        super().__init__(address, auth_handler=ServerAuth(secret))
        self._service = service

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            feed: Feed = pickle.loads(descriptor.command)
            outputs = self._service.exchange(feed, _items(reader))
        except flight.FlightError:
            raise
        except Exception as problem:
            raise server_error(problem) from problem
        writer.begin(outputs[0].schema if outputs else pa.schema([]))
        for batch in outputs:
            writer.write_batch(batch)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            body = pickle.loads(action.body)
            return [pickle.dumps(self._service.act(action.type, body), 5)]
        except Exception as problem:
            raise server_error(problem) from problem


def _items(reader: Any) -> Iterator[Any]:
    """The chunks of a feed, and its end marker."""
    for chunk in reader:
        if chunk.data is not None:
            yield chunk.data
        if chunk.app_metadata is not None:
            yield pickle.loads(chunk.app_metadata)
