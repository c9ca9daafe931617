"""The commands for running workflows: ``ps``, ``status``, ``events``, and those that change one.

They find a run in the user's registry, or by its address, and ask its HTTP API, without Spark or a
JVM.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from millstream.api import contract as c
from millstream.checkpoints.tables import as_text
from millstream.cli import control_text as text
from millstream.cli.argument_types import number, slots
from millstream.cli.commands import add_change, add_command
from millstream.cli.run_client import connect, describe_all, label_of
from millstream.wire.run_registry import RegisteredRun, RunRegistry

_FOLLOW_EVERY = 1.0
Asked = Callable[[argparse.Namespace], tuple[str, object]]


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    add_command(commands, "ps", _ps, "list your running workflows", "millstream ps", named=False)
    status = "show the epochs, nodes and slots of a running workflow"
    add_command(commands, "status", _status, status, "millstream status wordcount")
    events = add_command(
        commands,
        "events",
        _events,
        "list what happened to the nodes and slots of a running workflow, and why",
        "millstream events wordcount --follow",
    )
    events.add_argument("--follow", action="store_true", help="print new events until Ctrl-C")
    link = "print a link that opens the dashboard of a running workflow in a browser, once"
    dashboard = add_command(
        commands, "dashboard", _dashboard, link, "millstream dashboard wordcount"
    )
    dashboard.add_argument(
        "--viewer", action="store_true", help="a link that allows to look, and not to change"
    )
    _add_changes(commands)


def _add_changes(commands: Any) -> None:
    scale = _change(
        commands,
        "scale",
        lambda o: ("/scale", c.ScaleRequest(nodes=o.nodes, dry_run=o.dry_run)),
        "change the number of nodes of a running workflow",
        "millstream scale wordcount 4 --wait 60",
    )
    scale.add_argument("nodes", type=number, metavar="NODES", help="how many shall own slots")
    _change(
        commands,
        "rebalance",
        lambda o: ("/rebalance", c.RebalanceRequest(dry_run=o.dry_run)),
        "move slots so that every node has a fair share of the load",
        "millstream rebalance wordcount",
    )
    drain = _change(
        commands,
        "drain",
        lambda o: ("/drain", c.DrainRequest(node=o.node, dry_run=o.dry_run)),
        "let a node give up its slots and leave",
        "millstream drain wordcount 3f9c",
    )
    _node(drain)
    move = _change(
        commands,
        "move",
        lambda o: ("/move", _move(o)),
        "make a node the owner of slots",
        "millstream move wordcount 0-511,700 3f9c",
    )
    move.add_argument("slots", type=slots, metavar="SLOTS", help="such as 0-511,700")
    _node(move)
    stop = add_command(
        commands,
        "stop",
        _stop,
        "finish the epoch under way, then end a running workflow",
        "millstream stop wordcount",
    )
    stop.add_argument("--dry-run", action="store_true", help="only print what would happen")


def _change(
    commands: Any, name: str, asked: Asked, about: str, example: str
) -> argparse.ArgumentParser:
    return add_change(commands, name, lambda options: _changed(options, asked), about, example)


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="its id, or a beginning that no other has")


def _move(options: argparse.Namespace) -> c.MoveRequest:
    ranges = [c.SlotRange(start=run.start, stop=run.stop) for run in options.slots]
    return c.MoveRequest(slots=ranges, to=options.node, dry_run=options.dry_run)


# -- the commands ----------------------------------------------------------------------------


def _ps(options: argparse.Namespace) -> int:
    runs = RunRegistry.of_user().runs()
    labels = [label_of(run, runs) for run in runs]
    described = describe_all(runs)
    if options.json:
        facts = [
            {
                "name": label,
                **_run_facts(run),
                "committed": None if now is None else now.run.committed,
                "active": None if now is None else now.run.active,
                "target": None if now is None else now.run.target,
            }
            for run, label, now in zip(runs, labels, described, strict=True)
        ]
        print(as_text(facts))
    else:
        print(text.processes(runs, labels, described))
    return 0


def _status(options: argparse.Namespace) -> int:
    found = connect(options)
    now = found.client.snapshot()
    print(as_text(_facts(found.run, now)) if options.json else text.status(found.run, now))
    return 0


def _events(options: argparse.Namespace) -> int:
    client, since = connect(options).client, 0
    while True:
        page = client.get("/events", c.Events, since=since)
        since = page.newest
        if options.json and not options.follow:
            print(as_text([asdict(event) for event in page.events]))
        else:
            for event in page.events:
                print(as_text(asdict(event)) if options.json else text.event(event), flush=True)
        if not options.follow:
            return 0
        time.sleep(_FOLLOW_EVERY)


def _dashboard(options: argparse.Namespace) -> int:
    right: c.Right = "viewer" if options.viewer else "operator"
    client = connect(options, right).client
    link = client.post("/login-links", c.LoginLinkRequest(right=right), c.LoginLink)
    print(as_text(asdict(link)) if options.json else link.url)
    return 0


def _changed(options: argparse.Namespace, asked: Asked) -> int:
    found = connect(options, "operator")
    path, request = asked(options)
    change = found.client.post(path, request, c.Change)
    if options.dry_run:
        print(as_text(asdict(change)) if options.json else change.preview.text)
        return 0
    now = found.client.snapshot()
    if options.wait is not None and not now.run.is_settled:
        now = found.client.await_settled(options.wait, time.monotonic, time.sleep)
    in_time = options.wait is None or now.run.is_settled
    if options.json:
        print(as_text(_facts(found.run, now)))
    elif in_time:
        print(f"{'done' if now.run.is_settled else 'accepted'}: {text.progress(now)}")
    if not in_time:
        late = f"not done after {options.wait:g} s, and still under way: {text.progress(now)}"
        print(f"millstream: {late}", file=sys.stderr)
    return 0 if in_time else 1


def _stop(options: argparse.Namespace) -> int:
    client = connect(options, "operator").client
    change = client.post("/stop", c.StopRequest(dry_run=options.dry_run), c.Change)
    print(as_text(asdict(change)) if options.json else change.preview.text)
    return 0


# -- as JSON ---------------------------------------------------------------------------------


def _run_facts(run: RegisteredRun) -> dict[str, Any]:
    """What the registry knows of a run, without its tokens."""
    return {
        "workflow": run.workflow,
        "pid": run.process.pid,
        "host": run.process.host,
        "number": run.number,
        "started": run.started,
        "address": None if run.api is None else run.api.url,
    }


def _facts(run: RegisteredRun | None, now: c.Snapshot) -> dict[str, Any]:
    return {**({} if run is None else _run_facts(run)), **asdict(now)}
