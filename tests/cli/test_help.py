"""What every command has in common: an example, its exit codes, and JSON on request."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from millstream.cli import _parser
from millstream.cli.commands import NO_SUCH_RUN

NO_RESULT = {"demo", "completion"}  # what they print is for people, and for shells


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, str]]:
    """Each command by its words, and its help."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for name, command in action.choices.items():
            yield from leaves(command, f"{path} {name}".strip())
    if not below:
        yield path, parser.format_help()


COMMANDS = dict(leaves(_parser()))


def test_these_are_the_commands() -> None:
    assert {path.split()[0] for path in COMMANDS} == {
        *("demo", "run", "submit", "explain", "draw", "ps", "status", "top", "dashboard", "events"),
        *("scale", "rebalance", "drain", "move", "stop", "state", "checkpoint", "sink", "doctor"),
        *("bench", "completion"),
    }


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_has_an_example_and_the_exit_codes(path: str) -> None:
    found = re.search(r"\n\nexamples?: (.*)\n\nexit codes: (.*)", COMMANDS[path], re.DOTALL)
    assert found is not None
    example, codes = found.groups()

    assert f"millstream {path}" in example
    assert codes.startswith("0 ") and "2 wrong arguments" in codes
    assert ("--json" in COMMANDS[path]) == (path not in NO_RESULT)
    asks_a_run = "--at HOST:PORT" in COMMANDS[path]
    assert (f"{NO_SUCH_RUN} no such workflow is running" in codes) == (asks_a_run or path == "ps")
