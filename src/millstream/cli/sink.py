"""``millstream sink``: compacts the folders of file sinks, without Spark or a JVM."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from millstream.cli.commands import EXIT_CODES
from millstream.spark.compaction import compact


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    sink = commands.add_parser(
        "sink",
        help="maintain the folder of a file sink: compact",
        description="Maintain the folder of a file sink, while the workflow runs or afterwards.",
    )
    actions = sink.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "merge the files of each epoch into one"
    parser: argparse.ArgumentParser = actions.add_parser(
        "compact",
        help=about,
        description=f"{about.capitalize()}. A reader that lists the folder meanwhile sees each row "
        "once; one that has listed files and opens them only now gets an error, and must retry.",
        epilog=f"example: millstream sink compact out/counts --older-than 24\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="the sink's folder")
    parser.add_argument(
        "--older-than",
        type=_hours,
        default=timedelta(),
        metavar="HOURS",
        help="only epochs that were written so long ago; default: all",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_compact)


def _compact(options: argparse.Namespace) -> int:
    done = compact(options.path, older_than=options.older_than)
    text = f"compacted {done.epochs} epochs: {done.files} files became {done.epochs}"
    print(json.dumps(asdict(done)) if options.json else text)
    return 0


def _hours(text: str) -> timedelta:
    hours = float(text)
    if not hours >= 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return timedelta(hours=hours)
