"""How a node notices that its driver has ended, or has declared the node dead."""

from __future__ import annotations

from collections.abc import Callable

from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.membership import FencedError, Heartbeat
from millstream.wire.net import Net
from millstream.wire.timeouts import CALL_TIMEOUT

EVERY = 1.0
MAX_REFUSED = 2


def await_driver_lost(
    net: Net, coordinator: str, node: NodeId, ended: Callable[[], bool] = lambda: False
) -> bool:
    """Send heartbeats until the node is fenced or the driver is lost; return whether it is fenced.

    A refused connection means that the driver's process has ended; a timeout may be a slow driver.
    """
    refused = 0
    while refused < MAX_REFUSED and not ended():
        net.sleep(EVERY)
        try:
            net.call(coordinator, Heartbeat(node), CALL_TIMEOUT)
            refused = 0
        except FencedError:
            return True
        except UnreachableError as problem:
            refused += problem.refused
        except MillstreamError:
            continue
    return False
