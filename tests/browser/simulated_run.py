"""A run that exists only for the page: many nodes, moves, failures, decisions, and no Spark.

Nothing happens by itself: ``step`` is an epoch. The same seed gives the same run.
"""

from __future__ import annotations

import math
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar, cast

from millstream.api import contract as c
from millstream.api.event_view import page_of
from millstream.elastic.events import Event
from millstream.errors import ConfigError
from tests.browser.simulated_flow import WORDS, workflow_at
from tests.browser.simulated_history import SimulatedHistory
from tests.browser.simulated_ring import SimulatedRing

_MOVE_STEPS = 6
_LATENCIES = (0.5, 0.95, 0.99)

P = ParamSpec("P")
T = TypeVar("T")


def alone(
    method: Callable[Concatenate[SimulatedRun, P], T],
) -> Callable[Concatenate[SimulatedRun, P], T]:
    """Let one thread at a time into a run: the server answers while a test changes it."""

    def called(self: SimulatedRun, /, *arguments: P.args, **named: P.kwargs) -> T:
        with self.lock:
            return method(self, *arguments, **named)

    return called


class SimulatedRun:
    """Implements ``ServedRun`` for the page's tests and its development server."""

    workflow = "wordcount"

    def __init__(self, nodes: int = 200, *, zones: int = 4, seed: int = 7, time: float = 1.8e9):
        self.lock = threading.RLock()
        self._random = random.Random(seed)
        self._zones = zones
        self.time = time
        self._started = time
        self.epoch = -1
        self._number = 0
        self._target = nodes
        self._joined = 0
        self._nodes: dict[str, c.NodeView] = {}
        self._lost: list[str] = []
        self._leaving: set[str] = set()
        self._events: list[Event] = []
        self._past = SimulatedHistory(time)
        self._rate = 1.2e6
        self._phase: c.Phase = "running"
        self._ring = SimulatedRing(4096, 1, {})
        self._ring.tokens = self._ring.even([self._join() for _ in range(nodes)])
        self._snapshot: c.Snapshot | None = None

    # -- what happens ------------------------------------------------------------------------

    @alone
    def step(self, seconds: float = 1.0) -> None:
        """Commit an epoch."""
        self.epoch += 1
        self.time += seconds
        self._rate *= 1 + self._random.uniform(-0.04, 0.04) + 0.02 * math.sin(self.epoch / 20)
        self._rate = min(3e6, max(4e5, self._rate))
        if self._ring.goal is not None:
            self._ring.progress = min(1.0, self._ring.progress + 1 / _MOVE_STEPS)
            if self._ring.progress >= 1:
                self._settle()
        for node, view in self._nodes.items():
            self._nodes[node] = self._loaded(view)
        took = 0.28 + 0.06 * self._random.random() + (0.15 if self._ring.goal else 0)
        self._past.add(self.time, self._rate, seconds, took, list(self._nodes.values()))
        self._snapshot = None

    @alone
    def set_cpu(self, node: str, cpu: float) -> None:
        """One figure of one node changes, and nothing else."""
        self._nodes[node] = replace(self._nodes[node], cpu=cpu)
        self._snapshot = None

    @alone
    def fail(self, node: str) -> None:
        """A node dies; its backup owns its slots at once."""
        self._ring.lose(node)
        del self._nodes[node]
        self._lost.append(node)
        self._add("lost", f"node {node[:8]} was declared dead", {"node": node})
        self._snapshot = None

    @alone
    def replace_lost(self) -> None:
        """New nodes join until there are as many as there shall be."""
        short = self._target - len(self._nodes) + len(self._leaving)
        if short > 0:
            joined = [self._join() for _ in range(short)]
            self._aim([*self._stayers(), *joined])

    @alone
    def decide(self) -> None:
        """A policy adds a node, and says why."""
        inputs = {
            "nodes": len(self._nodes),
            "imbalance": 1.32,
            "latency": 0.41,
            "mean_cpu": 0.71,
            "max_cpu": 0.94,
            "tuples": self._rate,
            "busiest": next(iter(self._nodes)),
        }
        self._add(
            "decision",
            "bottleneck act: CPU of the busiest node was over 0.9 for 3 epochs",
            {
                "policy": "bottleneck",
                "actions": ["AddNodes: CPU of the busiest node was over 0.9 for 3 epochs"],
                "inputs": inputs,
                "predicted": {"imbalance": 1.05, "latency": 0.29},
                "dry_run": False,
            },
        )
        self.scale(self._target + 1, dry_run=False)

    @alone
    def report_outcome(self) -> None:
        """What came of the last decision shows."""
        decision = [event for event in self._events if event.kind == "decision"][-1]
        inputs = cast("dict[str, object]", decision.facts["inputs"])
        after = {**inputs, "nodes": len(self._nodes), "imbalance": 1.08, "latency": 0.31}
        self._add(
            "outcome",
            "imbalance from 1.32 to 1.08 (predicted 1.05), latency from 0.41 to 0.31",
            {
                "policy": "bottleneck",
                "decision": decision.number,
                "after": after,
                "errors": {"imbalance": -0.03, "latency": -0.02},
            },
        )

    # -- looking -----------------------------------------------------------------------------

    @alone
    def snapshot(self) -> c.Snapshot:
        if self._snapshot is None:
            self._number += 1
            self._snapshot = self._made()
        return self._snapshot

    @alone
    def history(self, since: float) -> c.History:
        return self._past.since(since)

    @alone
    def events(self, since: int, limit: int) -> c.Events:
        return page_of(self._events, since, limit)

    # -- state -------------------------------------------------------------------------------

    def state_jobs(self) -> list[c.StateJob]:
        return [c.StateJob(job="count", key_type="string", state_keys=len(WORDS))]

    @alone
    def get_many(self, job: str, keys: Sequence[str]) -> c.StateItems:
        known = {item.text: item for item in self._items()}
        return self._page(
            [
                known.get(key, c.StateItem(key=key, text=key, found=False, value=None))
                for key in keys
            ]
        )

    @alone
    def scan(self, query: c.ScanQuery) -> c.StateItems:
        if query.continuation is not None:
            return self._page(self._items()[query.limit :])
        found = [item for item in self._items() if item.text.startswith(query.prefix or "")]
        more = "next" if len(found) > query.limit else None
        return replace(self._page(found[: query.limit]), continuation=more)

    @alone
    def top(self, query: c.TopQuery) -> c.StateItems:
        ordered = sorted(self._items(), key=lambda item: item.value["n"], reverse=True)
        return self._page(ordered[: query.n])

    def _items(self) -> list[c.StateItem]:
        return [
            c.StateItem(key=word, text=word, found=True, value={"n": 1000 * (at + 1) + self.epoch})
            for at, word in enumerate(WORDS)
        ]

    def _page(self, items: list[c.StateItem]) -> c.StateItems:
        return c.StateItems(job="count", epoch=self.epoch, items=items)

    # -- changes -----------------------------------------------------------------------------

    @alone
    def scale(self, nodes: int, *, dry_run: bool) -> c.Change:
        stay = self._stayers()
        joining = max(0, nodes - len(stay))
        leaving = stay[nodes:]
        if not dry_run:
            self._add("scale", f"from {self._target} to {nodes} nodes", {"nodes": nodes})
            self._target = nodes
            self._leaving |= set(leaving)
            self._aim([*stay[:nodes], *(self._join() for _ in range(joining))])
        text = f"Scale from {len(stay)} to {nodes} nodes"
        return self._change(text, len(stay), nodes, joining, leaving, dry_run)

    @alone
    def rebalance(self, *, dry_run: bool) -> c.Change:
        count = len(self._stayers())
        if not dry_run:
            self._ring.goal, self._ring.progress = self._ring.even(self._stayers()), 0.0
            self._snapshot = None
        return self._change(f"Rebalance {count} nodes", count, count, 0, [], dry_run)

    @alone
    def drain(self, node: str, *, dry_run: bool) -> c.Change:
        found = [each for each in self._nodes if each.startswith(node)]
        if len(found) != 1:
            raise ConfigError(f"there is no node {node!r}; `millstream ps` lists them")
        count = len(self._stayers())
        if not dry_run:
            self._target -= 1
            self._leaving.add(found[0])
            self._add("drain", f"node {node[:8]} is leaving", {"node": found[0]})
            self._aim(self._stayers())
        text = f"Drain from {count} to {count - 1} nodes"
        return self._change(text, count, count - 1, 0, found, dry_run)

    def move(self, slots: Sequence[c.SlotRange], to: str, *, dry_run: bool) -> c.Change:
        raise ConfigError("the simulated run moves no single slots")

    @alone
    def stop(self, *, dry_run: bool) -> c.Change:
        count = len(self._nodes)
        if not dry_run:
            self._phase = "stopped"
            self._snapshot = None
        text = f"Stop the workflow after the epoch under way; its {count} nodes end"
        return self._change(text, count, 0, 0, list(self._nodes), dry_run)

    def _change(
        self,
        text: str,
        before: int,
        after: int,
        joining: int,
        leaving: Sequence[str],
        dry_run: bool,
    ) -> c.Change:
        moved = 4096 * abs(after - before) // max(1, before, after)
        preview = c.ChangePreview(
            text=f"{text}; {moved} slots (about {moved / 64:.1f} MiB of state) change owner "
            "between two epochs.",
            nodes_before=before,
            nodes_after=after,
            joining=joining,
            leaving=list(leaving),
            transfers=[],
            slots=moved,
            bytes=moved * 2**14,
        )
        return c.Change(dry_run=dry_run, preview=preview, run=self.snapshot().run)

    # -- how it is made ----------------------------------------------------------------------

    def _stayers(self) -> list[str]:
        known = [node for node in self._ring.nodes if node not in self._leaving]
        owners = {*known, *self._leaving}
        return [*known, *(node for node in self._nodes if node not in owners)]

    def _join(self) -> str:
        node = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        zone = f"zone-{'abcdefgh'[self._joined % self._zones]}"
        host = f"10.0.{self._joined % self._zones}.{self._joined // self._zones + 1}"
        self._joined += 1
        self._ring.zones[node] = zone
        self._nodes[node] = c.NodeView(
            id=node,
            host=host,
            executor=str(self._joined),
            zone=zone,
            pid=1000 + self._joined,
            role="active",
            is_slow=False,
            slots=0,
            copies=0,
            in_sync=0,
            cpu=self._random.uniform(0.3, 0.8),
            memory=350 * 2**20,
            state_bytes=60 * 2**20,
        )
        if self.epoch >= 0:
            self._add("join", f"node {node[:8]} joined ({host})", {"node": node})
        return node

    def _aim(self, nodes: Sequence[str]) -> None:
        self._ring.goal, self._ring.progress = self._ring.adapted(nodes), 0.0
        self._snapshot = None

    def _settle(self) -> None:
        moved = sum(move.stop - move.start for move in self._ring.moves())
        self._ring.settle()
        self._add("move", f"{moved} slots changed owner", {"moved": moved, "pending": 0})
        for node in self._leaving:
            del self._nodes[node]
            self._add("leave", f"node {node[:8]} left", {"node": node})
        self._leaving.clear()

    def _loaded(self, node: c.NodeView) -> c.NodeView:
        cpu = min(1.0, max(0.05, (node.cpu or 0.5) + self._random.uniform(-0.08, 0.08)))
        return replace(
            node,
            role="leaving" if node.id in self._leaving else "active",
            cpu=round(cpu, 2),
            queue=round(max(0.0, cpu - 0.7), 2),
            waiting=0.0,
            rows=round(self._rate / len(self._nodes)),
            reduce_seconds=round(cpu * 0.8, 2),
            memory=round((node.memory or 0) + self._random.uniform(-1, 1.2) * 2**20),
        )

    def _add(self, kind: str, text: str, facts: dict[str, object]) -> None:
        self._events.append(
            Event(
                time=self.time,
                epoch=self.epoch,
                kind=kind,
                text=text,
                facts=facts,
                number=len(self._events) + 1,
            )
        )

    def _made(self) -> c.Snapshot:
        ring = self._ring.view()
        owned = dict.fromkeys(self._nodes, 0)
        copied = dict.fromkeys(self._nodes, 0)
        for arc in ring.arcs:
            owned[arc.owner] += arc.stop - arc.start
            for node in arc.copies:
                copied[node] += arc.stop - arc.start
        pending = sum(move.stop - move.start for move in ring.moves)
        p50, p95, p99 = map(self._past.latency, _LATENCIES)
        graph, jobs = workflow_at(self._rate, self.time)
        return c.Snapshot(
            number=self._number,
            time=self.time,
            run=c.RunView(
                workflow=self.workflow,
                phase=self._phase,
                incarnation=1,
                started=self._started,
                committed=self.epoch,
                under_way=c.UnderWay(epoch=self.epoch + 1, tries=1, since=self.time),
                durable=self.epoch,
                target=self._target,
                active=len(self._nodes) - len(self._leaving),
                pending=pending,
                is_settled=pending == 0,
                failure=None,
                waits=[],
                lost=list(self._lost),
                fenced_alive=[],
            ),
            graph=graph,
            jobs=jobs,
            epochs=self._past.epochs[-50:],
            throughput=c.Throughput(
                rows_per_second=self._rate,
                latency_p50=p50,
                latency_p95=p95,
                latency_p99=p99,
                pressure=p50,
                epochs=self.epoch + 1,
                rows=sum(each.rows for each in self._past.epochs),
                state_keys=2_000_000 + 900 * self.epoch,
                state_bytes=self._past.state_bytes,
            ),
            backlog=[
                c.BacklogView(source="lines", unit="rows", amount=self._past.backlog(self._rate))
            ],
            checkpoint=self._past.checkpoint(),
            nodes=[
                replace(node, slots=owned[node.id], copies=copied[node.id], in_sync=copied[node.id])
                for node in self._nodes.values()
            ],
            ring=ring,
            hot_keys=[
                c.HotKeyView(job="count", key=key, slot=slot, owner=self._ring.owner(slot), share=s)
                for key, slot, s in (("the", 731, 0.062), ("of", 2210, 0.031), ("and", 3377, 0.027))
            ],
        )
