"""The command ``millstream``.

``millstream demo`` runs an example, ``millstream run`` a workflow in a file. ``millstream ps`` and
the commands beside it show and change running workflows, ``millstream checkpoint`` inspects
checkpoints, ``millstream sink`` compacts file sinks, ``millstream doctor`` checks what runs need,
``millstream bench`` compares with other engines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import millstream
from millstream.cli import (
    bench,
    checkpoint,
    completion,
    control,
    doctor,
    live_view,
    sink,
    state,
    workflow_file,
)
from millstream.cli.demo.story import Demo
from millstream.cli.java import find_java
from millstream.errors import MillstreamError

_INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    words, for_spark = workflow_file.without_options_for_spark(
        sys.argv[1:] if arguments is None else arguments
    )
    options = _parser().parse_args(words)
    options.spark = for_spark
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
    return Demo(master=options.master, quick=options.quick, browser=not options.no_browser).run()


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
        help="count the words of a stream while nodes are killed, added and removed",
        description="Stream words through a stateful word count. Meanwhile kill a node, grow from "
        "2 to 4 nodes, make a key hot and rebalance, and shrink again. Then compare every count "
        "with a batch query of Spark: it ends with 'exact: yes' or 'exact: no'.",
        epilog="example: millstream demo --quick\n\nexit codes: 0 exact, 1 a count is wrong or it "
        "failed, 2 wrong arguments",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--quick", action="store_true", help="a shorter story, with little text")
    demo.add_argument(
        "--no-browser", action="store_true", help="only print the address of the dashboard"
    )
    demo.add_argument(
        "--master", default="local[2]", metavar="URL", help="Spark's master; default: %(default)s"
    )
    demo.set_defaults(run=_demo)
    workflow_file.add_to(commands)
    control.add_to(commands)
    live_view.add_to(commands)
    state.add_to(commands)
    checkpoint.add_to(commands)
    sink.add_to(commands)
    doctor.add_to(commands)
    bench.add_to(commands)
    completion.add_to(commands, parser)
    return parser
