"""A placement as text, for logs and for the status of a run.

The data are in :mod:`millstream.ring.placement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from millstream.errors import ConfigError
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain

_SHORT = 8
_NAMED_COPIES = 4
_NODES = 64


def draw(placement: Placement, domains: Mapping[NodeId, Domain], width: int = 64) -> str:
    """Return a line per node, clockwise: id, zone/executor, slots, its part of the circle, copies.

    ``width`` is that of the circle, unrolled from slot 0 on. Behind the arrow are the nodes that
    get copies of the node's slots, with the number of slots if it is not all of them. Of very many
    nodes only the first are shown.
    """
    if width < 1:
        raise ConfigError(f"width must be at least 1, got {width}")
    every = placement.nodes
    nodes = every[:_NODES] if len(every) > _NODES + 1 else every
    short = _short_names(every)
    copied = _copied_slots(placement)
    where = [_where(domains.get(node)) for node in nodes]
    counts = [int(placement.owned(node).sum()) for node in nodes]
    name_width = max(map(len, short.values()))
    where_width = max(map(len, where))
    count_width = max(len(str(count)) for count in counts)
    size = f"{placement.ring.slots} slots, {len(every)} node{'' if len(every) == 1 else 's'}"
    legend = "# owns, + owns a few, - copies"
    lines = [f"ring version {placement.version}: {size} ({legend})"]
    for node, place, count in zip(nodes, where, counts, strict=True):
        bar = _bar(placement.owned(node), placement.fed(node), width)
        head = f"{short[node]:<{name_width}}  {place:<{where_width}}  {count:>{count_width}}"
        lines.append(f"{head}  |{bar}|{_arrow(copied[node], count, short)}")
    if len(every) > len(nodes):
        lines.append(f"and {len(every) - len(nodes)} more nodes")
    return "\n".join(lines)


def _bar(owned: SlotMask, fed: SlotMask, width: int) -> str:
    columns = min(width, owned.size)
    edges = np.arange(columns) * owned.size // columns
    lengths = np.diff(edges, append=owned.size)
    owned_slots, copied = (np.add.reduceat(mask.astype(np.int64), edges) for mask in (owned, fed))
    # A single slot is still visible: owned slots must not vanish.
    cells = np.select(
        [2 * owned_slots >= lengths, owned_slots > 0, copied > 0], ["#", "+", "-"], "."
    )
    return "".join(cells.tolist())


def _copied_slots(placement: Placement) -> dict[NodeId, dict[NodeId, int]]:
    """Return, for each node, how many of its slots are copied to each other node."""
    copied: dict[NodeId, dict[NodeId, int]] = {node: {} for node in placement.nodes}
    for share in placement.shares(range(placement.ring.slots)):
        counts = copied[share.owner]
        for copy in share.copies:
            counts[copy] = counts.get(copy, 0) + len(share.slots)
    return copied


def _arrow(copied: Mapping[NodeId, int], count: int, short: Mapping[NodeId, str]) -> str:
    if not copied:
        return ""
    names = [
        short[copy] if slots == count else f"{short[copy]} ({slots})"
        for copy, slots in list(copied.items())[:_NAMED_COPIES]
    ]
    more = len(copied) - len(names)
    return " -> " + ", ".join(names) + (f" and {more} more" if more else "")


def _short_names(nodes: Sequence[NodeId]) -> dict[NodeId, str]:
    """Return the first 8 characters of each id; of all ids more, if two would look alike."""
    length = _SHORT
    while len({node[:length] for node in nodes}) < len(nodes):
        length += 1
    return {node: node[:length] for node in nodes}


def _where(domain: Domain | None) -> str:
    return f"{domain.zone}/{domain.executor}" if domain else "?"
