"""Fault zones: which nodes fail together; the order of the first ring and the choice of backups.

The owners of slots are in :mod:`millstream.ring.ring`; the nodes that receive copies, which also
depend on the copying in progress, in :mod:`millstream.ring.placement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True)
class Domain:
    """The zone, host and executor of a node.

    Hosts are distinct in different zones, and executors on different hosts, also if they have the
    same name. So zones can be simulated on one machine.
    """

    zone: str
    host: str
    executor: str

    @property
    def path(self) -> tuple[str, str, str]:
        """The names from the outside in."""
        return self.zone, self.host, self.executor


def interleave(nodes: Sequence[NodeId], domains: Mapping[NodeId, Domain]) -> list[NodeId]:
    """Return the nodes in an order for the first ring: neighbours share as little as possible.

    Around the circle, as few neighbours as can be share a zone; among such orders, as few as can
    be share a host, and then an executor. The members of a zone are spread evenly, so that the
    second and third neighbour, too, tend to lie elsewhere. Nodes of one executor keep their order.
    """
    _check_domains(nodes, domains)
    return _spread(list(nodes), domains, 0)


def backups_of(
    ring: Ring, domains: Mapping[NodeId, Domain], replicas: int
) -> dict[NodeId, tuple[NodeId, ...]]:
    """Return the backups of each node, in the order of their choice; fewer if the ring is small.

    Each is the nearest node clockwise among those that share least with the primary and with the
    backups chosen before it: rather a zone with all of them than a host with one. The nodes are
    those of ``domains``, which may be more than own slots.
    """
    _check_replicas(replicas)
    _check_domains(ring.nodes, domains)
    return {node: _chosen(ring, node, domains, replicas) for node in ring.nodes}


def shortage(domains: Iterable[Domain], replicas: int) -> str | None:
    """Return what the copies do not protect against, for a log; None if there is nothing.

    There is one domain per node, so equal ones count.
    """
    _check_replicas(replicas)
    places = list(domains)
    needed = replicas + 1
    if replicas == 0:
        return None
    if len(places) <= 1:
        return (
            f"replicas={replicas} needs {needed} nodes, and there is no second: no slot has a copy"
        )
    if len(places) < needed:
        found = len(places)
        few = f"replicas={replicas} needs {needed} nodes, and there are {found}"
        copies = "1 copy" if found == 2 else f"{found - 1} copies"
        rest = shortage(places, found - 1)
        return f"{few}: each slot has {copies}" + (f"; {rest}" if rest else "")
    zones, hosts, executors = (len({place.path[:depth] for place in places}) for depth in (1, 2, 3))
    if zones >= needed:
        return None
    if hosts == 1:
        # The usual case on a laptop: no warning.
        what = "processes" if executors == 1 else "executors or processes"
        return f"all nodes are on one host: copies protect against the loss of {what} only"
    there = "all nodes are in 1 zone" if zones == 1 else f"the nodes are in {zones} zones"
    if hosts >= needed:
        instead = "copies within a zone are on other hosts"
    elif executors >= needed:
        instead = f"with only {hosts} hosts, copies on the same host are in other executors"
    else:
        instead = (
            f"with only {hosts} hosts and {executors} executors, copies in the same executor are "
            "merely in other processes"
        )
    return f"replicas={replicas} is best spread over {needed} zones, but {there}: {instead}"


def _spread(nodes: list[NodeId], domains: Mapping[NodeId, Domain], outer: int) -> list[NodeId]:
    """Order nodes that share the first ``outer`` names of their paths around a circle.

    A group of up to half of the nodes can be kept apart from itself. If there is a larger one,
    all others must be spent, one by one, on parting it; what they cannot part are neighbours
    within the group, and so the same question is asked again of its inner groups.
    """
    core: list[NodeId] = nodes
    others: list[NodeId] = []
    for level in range(outer, 3):
        groups = _grouped(core, domains, level)
        core = max(groups, key=len, default=[])
        if 2 * len(core) <= len(nodes):
            parts = [_spread(group, domains, level + 1) for group in groups]
            # The others are less than half, and kept apart from each other like a group.
            return _take_turns([*parts, _spread(others, domains, outer)] if others else parts)
        inside = set(core)
        others = [node for node in nodes if node not in inside]
    return _dotted(core, _spread(others, domains, outer) if others else [])


def _grouped(
    nodes: Iterable[NodeId], domains: Mapping[NodeId, Domain], level: int
) -> list[list[NodeId]]:
    groups: dict[str, list[NodeId]] = {}
    for node in nodes:
        groups.setdefault(domains[node].path[level], []).append(node)
    return list(groups.values())


def _take_turns(parts: list[list[NodeId]]) -> list[NodeId]:
    """Merge the parts, none more than half of all, so that no part follows itself in the circle.

    The part that is most behind its even pace is next, unless the rest could then no longer be
    kept apart.
    """
    left = [len(part) for part in parts]
    turns: list[int] = []

    # Parts of one size start one after the other, spread over their first lap; if all started at
    # once, many small parts would clump between two turns of a larger one.
    alike = Counter(left)
    seen: Counter[int] = Counter()
    offsets: list[float] = []
    for size in left:
        offsets.append((seen[size] + 0.5) / alike[size])
        seen[size] += 1

    def due(part: int) -> float:
        size = len(parts[part])
        return (size - left[part] + offsets[part]) / size

    def fits(part: int) -> bool:
        rest = sum(left) - 1
        first = turns[0] if turns else part
        # In a row of `rest`, every other place can be one part's; but not the first place if it
        # has just had its turn, nor the last one if it had the very first.
        return all(
            count - (other == part) <= (rest + 1 - (other == part) - (other == first)) // 2
            for other, count in enumerate(left)
        )

    while any(left):
        able = [part for part, count in enumerate(left) if count and part not in turns[-1:]]
        part = next(part for part in sorted(able, key=due) if fits(part))
        turns.append(part)
        left[part] -= 1
    queues = [iter(part) for part in parts]
    return [next(queues[part]) for part in turns]


def _dotted(many: list[NodeId], few: list[NodeId]) -> list[NodeId]:
    """Spread the few evenly among the many; two of the few do not meet, being less than half."""
    total = len(many) + len(few)
    ordinary, special = iter(many), iter(few)
    passed = [place * len(few) // total for place in range(total + 1)]
    return [
        next(special) if passed[place + 1] > passed[place] else next(ordinary)
        for place in range(total)
    ]


def _chosen(
    ring: Ring, node: NodeId, domains: Mapping[NodeId, Domain], replicas: int
) -> tuple[NodeId, ...]:
    # A node that owns nothing at the moment can still keep copies; it comes last.
    idle = sorted(domains.keys() - set(ring.nodes))
    candidates = [*ring.neighbours(node, len(ring.nodes)), *idle]
    chosen = [node]
    while candidates and len(chosen) <= replicas:
        holders = [domains[holder] for holder in chosen]

        def cost(candidate: NodeId, holders: list[Domain] = holders) -> list[int]:
            # Worst first: one shared executor is worse than any number of shared hosts.
            return sorted((shared(domains[candidate], other) for other in holders), reverse=True)

        best = min(candidates, key=cost)  # the first, so the nearest, among equals
        candidates.remove(best)
        chosen.append(best)
    return tuple(chosen[1:])


def shared(one: Domain, other: Domain) -> int:
    """Return how much two nodes share: 0 nothing, 1 a zone, 2 a host, 3 an executor."""
    if one.zone != other.zone:
        return 0
    if one.host != other.host:
        return 1
    return 2 if one.executor != other.executor else 3


def _check_domains(nodes: Iterable[NodeId], domains: Mapping[NodeId, Domain]) -> None:
    unknown = [node for node in nodes if node not in domains]
    if unknown:
        raise ConfigError(f"every node must have a domain, got none for {unknown}")


def _check_replicas(replicas: int) -> None:
    if replicas < 0:
        raise ConfigError(f"replicas must be at least 0, got {replicas}")
