"""How a node becomes a member of a workflow that is already running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.errors import MillstreamError
from millstream.node.driver_watch import EVERY, MAX_REFUSED
from millstream.ring.zones import Domain
from millstream.wire.calls import UnreachableError
from millstream.wire.membership import Assign, FencedError, Join
from millstream.wire.net import Net
from millstream.wire.timeouts import CALL_TIMEOUT


@dataclass(frozen=True)
class Admission:
    """What a node joins with: the ticket of its launch, and the fault domain it is in."""

    ticket: str
    domain: Domain


def join(
    net: Net, coordinator: str, request: Join, ended: Callable[[], bool] = lambda: False
) -> Assign | None:
    """Ask the coordinator to admit a node until it answers; None if the node must end.

    That is the case if it is rejected, or if the driver's process has ended.
    """
    refused = 0
    while refused < MAX_REFUSED and not ended():
        try:
            return net.call(coordinator, request, CALL_TIMEOUT)
        except FencedError:
            return None
        except UnreachableError as problem:
            refused += problem.refused
        except MillstreamError:
            pass  # the ticket is spent, and the next answer says so
        net.sleep(EVERY)
    return None
