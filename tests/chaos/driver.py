"""A driver as chaos runs start it: a process of its own, to which something happens on the way.

    python -m tests.chaos.driver FOLDER PLAN START

``FOLDER`` holds input, sinks and checkpoint; ``PLAN`` and ``START`` are pickles, in base64. What
happens is reported in lines of JSON; the final state is written to a file.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import logging
import os
import pickle
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.node.durability.base_writer import BaseOptions
from millstream.spark import checkpoint, startup
from tests.chaos.driver_plans import DriverPlan, Start
from tests.chaos.moments import arrange, wrap
from tests.chaos.windowed import windowed_workflow
from tests.chaos.workload import bounded_source, bounded_workflow, recorded

SLOTS = 256
RETAIN = 3


def say(**facts: Any) -> None:
    """Tell something, at once: the next moment may be the last."""
    os.write(1, json.dumps(facts).encode() + b"\n")


def main(arguments: list[str]) -> int:
    """Run the workflow to its end, if nothing comes between."""
    folder = Path(arguments[0])
    plan: DriverPlan = pickle.loads(base64.b64decode(arguments[1]))
    start: Start = pickle.loads(base64.b64decode(arguments[2]))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    _hurry()
    wrap("millstream.checkpoints.chain:Chain.commit", after=lambda: say(manifest=True))
    if start.moment is not None:
        arrange(start.moment, say)
    try:
        _run(folder, plan, start)
    except ms.MillstreamError as problem:
        say(ended=type(problem).__name__, text=str(problem)[:500])
        return 1
    say(ended="finished")
    return 0


def _hurry() -> None:
    """Have bases, and deletion of what is old, every other epoch."""
    for module, name, changed in (
        (startup, "NodeOptions", {"bases": BaseOptions(epochs=2)}),
        (checkpoint, "Journal", {"garbage_every": 2}),
    ):
        setattr(module, name, partial(getattr(module, name), **changed))


def _run(folder: Path, plan: DriverPlan, start: Start) -> None:
    recording = recorded(plan.seed, plan.epochs) if plan.source == "recording" else []
    source = bounded_source(f"{folder}/ready/*", recording)
    make = windowed_workflow if plan.shape.windows else bounded_workflow
    flow = make(source, folder, plan.shape)
    url = (folder / "store").read_text() if (folder / "store").exists() else None
    with ms.start(
        flow,
        checkpoint=folder / "checkpoint",
        store=url,
        nodes=start.nodes,
        recovery=start.recovery,
        durability=plan.durability,
        checkpoint_every=timedelta(seconds=0.5),
        retain=RETAIN,
        slots=SLOTS,
        master=plan.master,
        progress=False,
    ) as run:
        say(started=True)
        run.await_termination()
        found = {job: list(run.state(job).items()) for job in plan.jobs}
        (folder / "state").write_bytes(pickle.dumps((run.status().committed, found)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
