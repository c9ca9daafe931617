"""The Flight server around the coordinator."""

from __future__ import annotations

from millstream.coordinator.service import Coordinator
from millstream.wire.serving import RunServer
from millstream.wire.tls import Identity


class CoordinatorServer(RunServer):
    """Lets tasks and nodes reach the coordinator."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        coordinator: Coordinator,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(address, secret, coordinator.act, identity=identity)
