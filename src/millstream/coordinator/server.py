"""The Flight server around the coordinator."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow.flight as flight

from millstream.coordinator.service import Coordinator
from millstream.wire.auth import ServerAuth
from millstream.wire.calls import Endpoint, server_error


class CoordinatorServer(flight.FlightServerBase):  # type: ignore[misc]
    """Lets tasks and nodes reach the coordinator."""

    def __init__(self, address: str, secret: bytes, coordinator: Coordinator) -> None:
        super().__init__(address, auth_handler=ServerAuth(secret))
        self._coordinator = coordinator
        if self.port > 0:  # TCP, on a port that was free
            address = f"{address.removesuffix(':0')}:{self.port}"
        self.endpoint = Endpoint(address, secret)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            answer = self._coordinator.act(action.type, pickle.loads(action.body))
            return [pickle.dumps(answer, 5)]
        except Exception as problem:
            raise server_error(problem) from problem
