"""The commands for running workflows: ``ps``, ``status``, ``events``, and those that change one.

They find a run in the user's registry and authenticate with its secret, without Spark or a JVM.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from millstream.checkpoints.tables import as_text
from millstream.cli import control_text as text
from millstream.cli.argument_types import number, seconds, slots, slots_text
from millstream.cli.run_client import (
    NoSuchRunError,
    RunClient,
    describe_all,
    find_run,
    label_of,
)
from millstream.wire.control import (
    DescribeRun,
    DrainNode,
    ListEvents,
    MoveSlots,
    Rebalance,
    RunDescription,
    ScaleTo,
)
from millstream.wire.request import Request
from millstream.wire.run_registry import RegisteredRun, RunRegistry

NO_SUCH_RUN = 3
_ALL = float("-inf")
_FOLLOW_EVERY = 1.0
_EXIT_CODES = (
    "exit codes: 0 done, 1 refused or failed, 2 wrong arguments, 3 no such workflow is running"
)
Command = Callable[[argparse.Namespace], int]
Change = Callable[[argparse.Namespace], Request[RunDescription]]


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    for_all = _Adder(commands)
    for_all.command("ps", _ps, "list your running workflows", "millstream ps")
    status = "show the epochs, nodes and slots of a running workflow"
    for_all.command("status", _status, status, "millstream status wordcount", named=True)
    events = for_all.command(
        "events",
        _events,
        "list what happened to the nodes and slots of a running workflow, and why",
        "millstream events wordcount --follow",
        named=True,
    )
    events.add_argument("--follow", action="store_true", help="print new events until Ctrl-C")
    scale = for_all.change(
        "scale",
        lambda options: ScaleTo(options.nodes),
        "change the number of nodes of a running workflow",
        "millstream scale wordcount 4 --wait 60",
    )
    scale.add_argument("nodes", type=number, metavar="NODES", help="how many shall own slots")
    for_all.change(
        "rebalance",
        lambda _: Rebalance(),
        "move slots so that every node has a fair share of the load",
        "millstream rebalance wordcount",
    )
    drain = for_all.change(
        "drain",
        lambda options: DrainNode(options.node),
        "let a node give up its slots and leave",
        "millstream drain wordcount 3f9c",
    )
    _node(drain)
    move = for_all.change(
        "move",
        lambda options: MoveSlots(options.slots, options.node),
        "make a node the owner of slots",
        "millstream move wordcount 0-511,700 3f9c",
    )
    move.add_argument("slots", type=slots, metavar="SLOTS", help="such as 0-511,700")
    _node(move)


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="its id, or a beginning that no other has")


class _Adder:
    """Adds commands that have a help text of the same form."""

    def __init__(self, commands: Any) -> None:
        self._commands = commands

    def command(
        self, name: str, command: Command, about: str, example: str, *, named: bool = False
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = self._commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=f"example: {example}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if named:
            what = "the workflow's name, or NAME:PID if several of that name are running"
            parser.add_argument("name", metavar="NAME", help=what)
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=_run, command=command)
        return parser

    def change(
        self, name: str, change: Change, about: str, example: str
    ) -> argparse.ArgumentParser:
        parser = self.command(name, _change, about, example, named=True)
        parser.add_argument(
            "--wait",
            type=seconds,
            metavar="SECONDS",
            help="return when all changes are done, with status 1 if that takes longer",
        )
        parser.set_defaults(change=change)
        return parser


def _run(options: argparse.Namespace) -> int:
    try:
        command: Command = options.command
        return command(options)
    except NoSuchRunError as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return NO_SUCH_RUN


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
                "committed": None if now is None else now.committed,
                "active": None if now is None else now.active,
                "target": None if now is None else now.target,
            }
            for run, label, now in zip(runs, labels, described, strict=True)
        ]
        print(as_text(facts))
    else:
        print(text.processes(runs, labels, described))
    return 0


def _status(options: argparse.Namespace) -> int:
    run = _found(options)
    now = RunClient(run).ask(DescribeRun())
    print(as_text(_facts(run, now)) if options.json else text.status(run, now))
    return 0


def _events(options: argparse.Namespace) -> int:
    client, since = RunClient(_found(options)), _ALL
    while True:
        page = client.ask(ListEvents(since))
        since = page.events[-1].time if page.events else since
        found = page.by_clock(time.time())
        if options.json and not options.follow:
            print(as_text([asdict(event) for event in found]))
        else:
            for event in found:
                print(as_text(asdict(event)) if options.json else text.event(event), flush=True)
        if not options.follow:
            return 0
        time.sleep(_FOLLOW_EVERY)


def _change(options: argparse.Namespace) -> int:
    run = _found(options)
    client = RunClient(run)
    now = client.ask(options.change(options))
    if options.wait is not None and not now.is_settled:
        now = client.await_settled(options.wait, time.monotonic, time.sleep)
    in_time = options.wait is None or now.is_settled
    if options.json:
        print(as_text(_facts(run, now)))
    elif in_time:
        print(f"{'done' if now.is_settled else 'accepted'}: {text.progress(now)}")
    if not in_time:
        late = f"not done after {options.wait:g} s, and still under way: {text.progress(now)}"
        print(f"millstream: {late}", file=sys.stderr)
    return 0 if in_time else 1


def _found(options: argparse.Namespace) -> RegisteredRun:
    return find_run(options.name, RunRegistry.of_user().runs())


# -- as JSON ---------------------------------------------------------------------------------


def _run_facts(run: RegisteredRun) -> dict[str, Any]:
    """What the registry knows of a run, without its secret."""
    return {
        "workflow": run.workflow,
        "pid": run.process.pid,
        "host": run.process.host,
        "number": run.number,
        "started": run.started,
        "address": run.endpoint.address,
    }


def _facts(run: RegisteredRun, now: RunDescription) -> dict[str, Any]:
    owned = {node: slots_text(runs) for node, runs in now.owned.items()}
    return {**_run_facts(run), **asdict(now), "active": now.active, "owned": owned}
