"""The Flight server around the coordinator."""

from __future__ import annotations

from millstream.coordinator.service import Coordinator
from millstream.wire.serving import RunServer
from millstream.wire.tls import Identity


class CoordinatorServer(RunServer):
    """Serves tasks and nodes."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        coordinator: Coordinator,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(address, secret, coordinator.answer, identity=identity)
