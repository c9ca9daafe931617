"""Serves what users ask of a running workflow.

Nodes may be named by the beginning of their id. Changes take effect between two epochs. This module
checks and resolves what users pass; :mod:`millstream.coordinator.scaling` makes the changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from millstream.coordinator import change_preview
from millstream.coordinator.change_preview import Preview
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunContext, RunEndedError
from millstream.coordinator.scaling import Scaling
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId
from millstream.wire.control import EventPage
from millstream.wire.persistence import NotReadyError


class ControlledRun(RunContext, Protocol):
    """The run as its user changes it."""

    @property
    def has_begun(self) -> bool: ...

    @property
    def state_lost(self) -> StateLostError | None: ...

    @property
    def scaling(self) -> Scaling: ...


class ControlService:
    """Previews and makes the changes of a run; wrong values are a ``ConfigError``."""

    def __init__(self, run: ControlledRun) -> None:
        self._run = run

    # -- looking ---------------------------------------------------------------------------

    def events(self, since: float = float("-inf")) -> EventPage:
        """The retained events later than a time of the run's clock."""
        events = tuple(event for event in self._run.events.all() if event.time > since)
        return EventPage(self._run.net.now(), events)

    # -- previews --------------------------------------------------------------------------

    def preview_scale(self, nodes: int) -> Preview:
        """What ``scale`` would do."""
        self._require_running()
        with self._run.scaling.unchanged() as roster:
            return change_preview.scaled(roster, self._run.scaling, nodes)

    def preview_rebalance(self) -> Preview:
        """What ``rebalance`` would do."""
        self._require_running()
        with self._run.scaling.unchanged() as roster:
            return change_preview.rebalanced(roster, self._run.scaling)

    def preview_drain(self, name: str) -> Preview:
        """What ``drain`` would do."""
        self._require_running()
        with self._run.scaling.unchanged() as roster:
            return change_preview.drained(roster, self._run.scaling, self._leaver(name))

    def preview_move(self, slots: Iterable[int], to: str) -> Preview:
        """What ``move`` would do."""
        self._require_running()
        with self._run.scaling.unchanged() as roster:
            node = resolved(to, roster.active, "active node")
            return change_preview.moved(roster, _checked(slots, roster.placement.ring.slots), node)

    # -- changing --------------------------------------------------------------------------

    def scale(self, nodes: int) -> None:
        """Set how many nodes shall be active."""
        self._require_running()
        if not isinstance(nodes, int) or isinstance(nodes, bool):
            slots = self._run.roster.placement.ring.slots
            raise ConfigError(f"nodes must be a whole number from 1 to {slots}, got {nodes!r}")
        self._run.scaling.scale_to(nodes)

    def rebalance(self) -> None:
        """Give every node a fair share of the load."""
        self._require_running()
        self._run.scaling.rebalance()

    def drain(self, name: str) -> None:
        """Let a node, named by its id or the beginning of it, give up its slots and leave."""
        self._require_running()
        self._run.scaling.drain([self._leaver(name)])

    def move(self, slots: Iterable[int], to: str) -> None:
        """Make a node, named by its id or the beginning of it, the owner of slots."""
        self._require_running()
        node = resolved(to, self._run.roster.active, "active node")
        self._run.scaling.move(_checked(slots, self._run.roster.placement.ring.slots), node)

    def _leaver(self, name: str) -> NodeId:
        node = resolved(name, self._run.roster.nodes, "node")
        if self._run.roster.active == (node,):
            raise ConfigError(f"node {node[:8]} is the last active one; add another node first")
        return node

    def _require_running(self) -> None:
        if self._run.state_lost is not None:
            raise self._run.state_lost
        if self._run.is_closed:
            raise RunEndedError("the run has ended; nothing was changed")
        if not self._run.has_begun:
            raise NotReadyError("the workflow is starting; retry in a moment")


def _checked(slots: Iterable[int], of: int) -> list[int]:
    wanted = dict[int, None]()
    for slot in slots:
        if not 0 <= slot < of:
            raise ConfigError(f"slots must be from 0 to {of - 1}, got {slot}")
        wanted[slot] = None
    return list(wanted)


def resolved(name: str, nodes: Iterable[NodeId], kind: str) -> NodeId:
    """The one node whose id begins so."""
    known = list(nodes)
    found = [node for node in known if name and node.startswith(name)]
    if name in found:
        found = [NodeId(name)]
    if not found:
        raise ConfigError(f"there is no {kind} {name!r}; the {kind}s are {_names(known)}")
    if len(found) > 1:
        raise ConfigError(f"several {kind}s begin with {name!r}: {_names(found)}")
    return found[0]


def _names(nodes: Iterable[NodeId]) -> str:
    return ", ".join(node[:8] for node in nodes)
