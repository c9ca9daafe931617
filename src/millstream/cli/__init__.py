"""The command ``millstream``.

``millstream demo`` runs an example, ``millstream ps`` and the commands beside it show and change
running workflows, ``millstream checkpoint`` inspects checkpoints, ``millstream sink`` compacts file
sinks, ``millstream --version`` prints the version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import millstream
from millstream.cli import checkpoint, control, sink
from millstream.cli.argument_types import number
from millstream.cli.demo import DEFAULT_WORDS, Demo
from millstream.cli.java import find_java
from millstream.errors import MillstreamError

_INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return _INTERRUPTED
    except MillstreamError as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return 1


def _demo(options: argparse.Namespace) -> int:
    find_java()
    return Demo(words=options.words, nodes=options.nodes, master=options.master).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millstream", description="Elastic streaming MapReduce on Apache Spark."
    )
    parser.add_argument(
        "--version", action="version", version=f"millstream {millstream.__version__}"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="count the words of a stream, and compare every count with a batch query",
        description="Generate a text, stream it through a stateful word count, and compare every "
        "count with a batch query of Spark. Ends with 'exact: yes' or 'exact: no'.",
    )
    demo.add_argument(
        "--words", type=number, default=DEFAULT_WORDS, metavar="N", help="default: %(default)s"
    )
    demo.add_argument(
        "--nodes", type=number, default=2, metavar="N", help="owners of state; default: 2"
    )
    demo.add_argument(
        "--master", default="local[2]", metavar="URL", help="Spark's master; default: %(default)s"
    )
    demo.set_defaults(run=_demo)
    control.add_to(commands)
    checkpoint.add_to(commands)
    sink.add_to(commands)
    return parser
