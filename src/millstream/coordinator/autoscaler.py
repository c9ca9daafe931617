"""The autoscaler: asks the policy after each epoch, and has what it suggests enacted.

While a change is under way the policy is not asked. Every decision is an event, with the load that
it was made from and what the policy predicts; a later event has what came of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from millstream.coordinator.roster import Roster
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.scaling import Scaling
from millstream.elastic.action_checks import problem_with
from millstream.elastic.actions import Action, AddNodes, MoveSlots
from millstream.elastic.cooldown import Cooldown, decide_calmly
from millstream.elastic.decisions import Decision, decided, outcome
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.policy import Policy, PolicyError
from millstream.errors import MillstreamError

log = logging.getLogger("millstream")

_RETAINED = 64
_PATIENCE = 30.0  # for nodes that were asked for


class Autoscaler:
    """Lets a policy decide about the nodes and slots of a run."""

    def __init__(
        self,
        policy: Policy,
        *,
        min_nodes: int,
        max_nodes: int,
        cooldown: Cooldown,
        dry_run: bool = False,
    ) -> None:
        """With ``dry_run`` decisions are events and nothing more."""
        self._policy = policy
        self._min, self._max = min_nodes, max_nodes
        self._cooldown = cooldown
        self._dry_run = dry_run
        self._past: list[Decision] = []
        self._open: Decision | None = None  # whose outcome is not known yet
        self._number = 0  # of the event of that decision
        self._short_since: float | None = None  # of the nodes that were asked for

    def consider(self, run: RunContext, scaling: Scaling, history: Sequence[Load]) -> None:
        """Let the policy decide, unless a change is under way; enact what it suggests."""
        if not history or not self._is_quiet(run.roster, history[-1]):
            return
        try:
            actions = self._decide(run, history)
        except Exception as problem:  # of a policy that a user wrote: the run does without
            log.warning("the policy %s failed; nothing changes: %s", self._policy.name, problem)
            run.events.add("policy-failed", str(problem), {"policy": self._policy.name})
            return
        for action in () if self._dry_run else actions:
            self._enact(scaling, action, run)

    def _is_quiet(self, roster: Roster, load: Load) -> bool:
        """Whether no change is under way; nodes that do not come are not waited for for ever."""
        if len(roster.active) >= roster.target:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = load.time
        is_waiting = self._short_since is not None and load.time - self._short_since < _PATIENCE
        return not (roster.pending or roster.leaving or is_waiting)

    def _decide(self, run: RunContext, history: Sequence[Load]) -> list[Action]:
        roster, ring = run.roster, run.roster.placement.ring
        self._report_outcome(run, history[-1])
        # Never so few that a slot would have no replica, unless there are as few now.
        least = max(self._min, min(roster.replicas + 1, len(roster.active)))
        limits = Limits(
            min_nodes=min(least, self._max), max_nodes=self._max, standby=len(roster.standby)
        )
        actions = decide_calmly(self._policy, history, ring, limits, self._past, self._cooldown)
        if self._short_since is not None:  # more nodes were asked for, and did not come
            actions = [action for action in actions if isinstance(action, MoveSlots)]
        impossible = problem_with(actions, ring, limits)
        if impossible is not None:
            raise PolicyError(self._policy.name, None, impossible.what, impossible.fix)
        if actions:
            newest = history[-1]
            decision = decided(self._policy.name, actions, newest, ring, dry_run=self._dry_run)
            self._past = [*self._past[-_RETAINED:], decision]
            self._open = decision
            self._report(run, decision)
        return actions

    def _enact(self, scaling: Scaling, action: Action, run: RunContext) -> None:
        try:
            if isinstance(action, MoveSlots):
                scaling.move([slot for part in action.slots for slot in part], action.to)
            elif isinstance(action, AddNodes):
                scaling.scale_to(run.roster.target + action.count)
            else:
                scaling.drain(action.nodes)
        except MillstreamError as problem:  # members may have changed since the load was taken
            run.events.add("refused", f"refused: {problem}", {"policy": self._policy.name})

    def _report(self, run: RunContext, decision: Decision) -> None:
        would = "would " if decision.dry_run else ""
        reasons = "; ".join(action.reason for action in decision.actions)
        facts = {
            "policy": decision.policy,
            "actions": [f"{type(action).__name__}: {action.reason}" for action in decision.actions],
            "inputs": asdict(decision.before),
            "predicted": dict(decision.predicted),
            "dry_run": decision.dry_run,
        }
        event = run.events.add("decision", f"{decision.policy} {would}act: {reasons}", facts)
        self._number = event.number

    def _report_outcome(self, run: RunContext, load: Load) -> None:
        """Add what came of the last decision, when it shows in the load."""
        decision = self._open
        if decision is None or load.epoch < decision.epoch + self._cooldown.epochs:
            return
        self._open = None
        came = outcome(decision, load, run.roster.placement.ring)
        facts = {
            "policy": decision.policy,
            "decision": self._number,
            "after": asdict(came.after),
            "errors": dict(came.errors),
        }
        run.events.add("outcome", str(came), facts)
