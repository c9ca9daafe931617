"""The deterministic simulator: runs on a virtual clock, with seeded faults.

A :class:`World` holds simulated processes. Each gets a ``Net`` of its own (:class:`SimNet`), and
the code that production runs over Arrow Flight runs over it unchanged. The same seed gives the
same run, down to the last message.
"""

from millstream.sim.links import Faults
from millstream.sim.network import SimNet, World
from millstream.sim.tasks import Crashed, StalledError

__all__ = ["Crashed", "Faults", "SimNet", "StalledError", "World"]
