"""A ring in memory for the page: tokens, owners, copies, and moves that take a few steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from millstream.api.contract import ArcView, PendingMove, RingView, TokenView

Token = tuple[int, str]


@dataclass
class SimulatedRing:
    """Nodes by token; ``goal`` is what pending moves lead to."""

    slots: int
    replicas: int
    zones: dict[str, str]
    tokens: list[Token] = field(default_factory=list)
    goal: list[Token] | None = None
    progress: float = 0.0
    version: int = 1

    def even(self, nodes: Sequence[str]) -> list[Token]:
        """A token for each node, at equal distances."""
        return [(at * self.slots // len(nodes), node) for at, node in enumerate(nodes)]

    def adapted(self, nodes: Sequence[str]) -> list[Token]:
        """Tokens of other nodes are dropped; each new node gets half of the longest arc."""
        tokens = [token for token in self.tokens if token[1] in nodes]
        owners = {node for _, node in tokens}
        for node in nodes:
            if node in owners:
                continue
            start, stop, _ = max(self.spans(tokens), key=lambda span: span[1] - span[0])
            tokens = sorted([*tokens, ((start + stop) // 2, node)])
        return tokens

    def settle(self) -> None:
        """Put the goal into force."""
        if self.goal is not None:
            self.tokens, self.goal, self.progress = self.goal, None, 0.0
            self.version += 1

    def lose(self, node: str) -> None:
        """Reassign a node's slots to its backup."""
        order = [each for _, each in self.tokens]
        heir = self._copies(order.index(node), order)[0]
        self.tokens = [(slot, heir if each == node else each) for slot, each in self.tokens]
        self.goal, self.progress = None, 0.0
        self.version += 1

    @property
    def nodes(self) -> list[str]:
        """The owners, clockwise."""
        return list(dict.fromkeys(node for _, node in self.tokens))

    def spans(self, tokens: Sequence[Token]) -> Iterator[tuple[int, int, int]]:
        """Start, stop and position of each token's slots; the last ones wrap to the first slots."""
        for at, (slot, _) in enumerate(tokens):
            yield slot, tokens[at + 1][0] if at + 1 < len(tokens) else self.slots, at
        if tokens[0][0] > 0:
            yield 0, tokens[0][0], len(tokens) - 1

    def owner(self, slot: int) -> str:
        """The owner of a slot."""
        return _owner(self.tokens, slot)

    def moves(self) -> list[PendingMove]:
        """Adjacent slots that shall have another owner."""
        if self.goal is None:
            return []
        cuts = sorted({0, self.slots, *(slot for slot, _ in (*self.tokens, *self.goal))})
        found = []
        for start, stop in pairwise(cuts):
            source, to = self.owner(start), _owner(self.goal, start)
            if source != to:
                found.append(
                    PendingMove(
                        start=start,
                        stop=stop,
                        source=source,
                        to=to,
                        in_sync=int((stop - start) * self.progress),
                    )
                )
        return found

    def view(self) -> RingView:
        """The ring as the contract shows it."""
        order = [node for _, node in self.tokens]
        arcs = sorted(
            (
                ArcView(start=start, stop=stop, owner=order[at], copies=self._copies(at, order))
                for start, stop, at in self.spans(self.tokens)
            ),
            key=lambda arc: arc.start,
        )
        return RingView(
            version=self.version,
            slots=self.slots,
            replicas=self.replicas,
            tokens=[TokenView(slot=slot, node=node) for slot, node in self.tokens],
            arcs=arcs,
            moves=self.moves(),
            under_replicated=0,
        )

    def _copies(self, at: int, order: Sequence[str]) -> list[str]:
        others = [node for node in [*order[at + 1 :], *order[:at]] if node != order[at]]
        apart = [node for node in others if self.zones[node] != self.zones[order[at]]]
        return list(dict.fromkeys(apart or others))[: self.replicas]


def _owner(tokens: Sequence[Token], slot: int) -> str:
    return tokens[bisect_right(tokens, slot, key=lambda token: token[0]) - 1][1]
