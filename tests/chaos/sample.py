"""A few chaos runs on one cluster, for the tests; a process can have one cluster only.

``python -m tests.chaos.sample`` prints a line of JSON for each run.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tests.chaos.clusters import cluster
from tests.chaos.plans import Plan
from tests.chaos.runner import run_once

_QUICK = Plan(seed=0, nodes=5, faults=3, epochs=8)
PLANS = {
    "epoch": replace(_QUICK, seed=1),
    "interval": replace(_QUICK, seed=2, durability="interval"),
    "stops": replace(_QUICK, seed=5, mode="stops", replicas=2, faults=2, keys=20_000),
    "zones": replace(_QUICK, seed=3, mode="zones", nodes=4, faults=1),
    "no copies": replace(_QUICK, seed=4, mode="kills", replicas=0, nodes=3, faults=1),
}


def main() -> None:
    with cluster("local-cluster", 2) as there:
        for name, plan in PLANS.items():
            outcome = run_once(there, plan)
            facts = {
                "landed": outcome.landed,
                "lost": outcome.lost,
                "fenced": len(outcome.fenced),
                "exact": outcome.exact,
            }
            print(json.dumps({"name": name, "report": outcome.report(), **facts}), flush=True)


if __name__ == "__main__":
    main()
