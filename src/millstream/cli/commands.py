"""How commands for running workflows are added: help of one form, NAME, ``--at`` and ``--json``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from millstream.cli.argument_types import seconds
from millstream.cli.run_client import NoSuchRunError

NO_SUCH_RUN = 3
EXIT_CODES = "exit codes: 0 done, 1 refused or failed, 2 wrong arguments"
Command = Callable[[argparse.Namespace], int]


def add_command(
    commands: Any, name: str, command: Command, about: str, example: str, *, named: bool = True
) -> argparse.ArgumentParser:
    """Add a command, by default one about a running workflow; ``example`` follows its name."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example: {example}\n\n{EXIT_CODES}, {NO_SUCH_RUN} no such workflow is running",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if named:
        what = "the workflow's name, or NAME:PID if several of that name are running"
        parser.add_argument("name", metavar="NAME", nargs="?", help=what)
        parser.add_argument(
            "--at",
            metavar="HOST:PORT",
            help="instead of NAME: the address of its dashboard, with a token in MILLSTREAM_TOKEN",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run, command=command)
    return parser


def add_change(
    commands: Any, name: str, command: Command, about: str, example: str
) -> argparse.ArgumentParser:
    """Add a command that changes a running workflow."""
    parser = add_command(commands, name, command, about, example)
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="SECONDS",
        help="return when all changes are done, with status 1 if that takes longer",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would happen")
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        command: Command = options.command
        return command(options)
    except NoSuchRunError as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return NO_SUCH_RUN
