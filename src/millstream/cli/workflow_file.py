"""Workflows in files: ``run``, ``submit``, ``explain`` and ``draw`` of ``app.py[:flow]``."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import millstream
from millstream.checkpoints.tables import as_text
from millstream.cli.argument_types import number
from millstream.cli.commands import EXIT_CODES
from millstream.cli.java import find_java
from millstream.cli.submit import submit
from millstream.errors import ConfigError
from millstream.flow.workflow import Workflow

_WHAT = "a Python file, and the name of its workflow, or of a function that returns one"


def add_to(commands: Any) -> None:
    """Add the commands."""
    run = _command(commands, "run", _run, "run a workflow until its input ends, or Ctrl-C")
    _add_options(run)
    submitted = _command(
        commands,
        "submit",
        _submit,
        "run a workflow through spark-submit; options after -- are for spark-submit",
        " --master yarn -- --num-executors 4",
    )
    _add_options(submitted)
    submitted.add_argument("--dry-run", action="store_true", help="only print the command")
    _command(commands, "explain", _explain, "print the plan of a workflow")
    draw = _command(commands, "draw", _draw, "print the graph of a workflow for Mermaid")
    draw.add_argument("--dot", action="store_true", help="for Graphviz")


def without_options_for_spark(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line, and those after the ``--`` of ``submit``.

    ``argparse`` cannot have options before them.
    """
    if list(words[:1]) != ["submit"] or "--" not in words:
        return list(words), []
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _command(commands: Any, name: str, command: Any, about: str, more: str = "") -> Any:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example: millstream {name} app.py:flow{more}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="APP.PY[:FLOW]", help=_WHAT)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=command)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=number, metavar="N", help="default: one per core")
    parser.add_argument("--master", metavar="URL", help="Spark's master")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="resume from it, and write to it")
    parser.add_argument("--policy", metavar="NAME", help="ring, bottleneck or latency")


def load(app: str) -> Workflow:
    """The workflow in a file: the one that is named, or else the only one."""
    path, _, name = app.partition(":")
    if not Path(path).is_file():
        raise ConfigError(f"there is no file {path!r}; give app.py or app.py:flow")
    sys.path.insert(0, str(Path(path).resolve().parent))
    names = runpy.run_path(path, run_name="millstream_app")
    if name:
        found = names.get(name)
        if callable(found) and not isinstance(found, Workflow):
            found = found()
        if not isinstance(found, Workflow):
            raise ConfigError(f"{name!r} of {path} is no workflow, nor returns one: {found!r}")
        return found
    flows = {id(value): value for value in names.values() if isinstance(value, Workflow)}
    if len(flows) != 1:
        known = [key for key, value in names.items() if isinstance(value, Workflow)]
        raise ConfigError(
            f"{path} has {len(flows)} workflows ({', '.join(known) or 'none'}); name one, or a "
            f"function that returns one: {path}:flow"
        )
    return next(iter(flows.values()))


def _run(options: argparse.Namespace) -> int:
    flow = load(options.app)
    find_java()
    summary = millstream.run(flow, **_given(options))
    totals = summary.totals
    if options.json:
        print(as_text({"workflow": summary.workflow, "epochs": totals.epochs, "rows": totals.rows}))
    else:
        print(f"{totals.epochs} epochs, {totals.rows:,} rows, {totals.rows_per_second:,.0f} rows/s")
    return 0


def _given(options: argparse.Namespace) -> dict[str, Any]:
    names = ("nodes", "master", "checkpoint", "policy")
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _explain(options: argparse.Namespace) -> int:
    text = load(options.app).explain()
    print(as_text({"plan": text}) if options.json else text)
    return 0


def _draw(options: argparse.Namespace) -> int:
    drawing = load(options.app).draw()
    text = drawing.dot if options.dot else drawing.mermaid
    print(as_text({"drawing": text}) if options.json else text)
    return 0


def _submit(options: argparse.Namespace) -> int:
    load(options.app)  # before anything is sent to a cluster
    given = {name: value for name, value in _given(options).items() if name != "master"}
    return submit(options, [f"--{name}={value}" for name, value in given.items()])
