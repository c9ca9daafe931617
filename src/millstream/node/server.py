"""The Flight server around a node."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from pathlib import Path

from millstream.node.held_units import Block
from millstream.node.service import NodeService
from millstream.wire.blocks import digest_of
from millstream.wire.serving import RunServer
from millstream.wire.tls import Identity


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


def hardware() -> str:
    """The processor of this host and the number of its cores: equal hosts have equal names."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {next(models, platform.machine())}"


class NodeServer(RunServer):
    """Serves tasks, peers and the coordinator."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        service: NodeService,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(address, secret, service.answer, service.exchange, identity)
