"""``millstream bench``: runs the comparison with other engines that a source checkout has.

The benchmarks are no part of the package; this module finds them and passes the options on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import millstream
from millstream.cli.java import find_java
from millstream.errors import MillstreamError

_COMPARISON = Path("benchmarks", "compare.py")
_WRONG_ARGUMENTS = 2


class NoSourceCheckoutError(MillstreamError):
    """The benchmarks are in the source tree, and there is none here."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return (
            f"the benchmarks are not part of the installed package, and {self.folder} is not in a "
            "source checkout of Millstream; clone its repository, change into it, type `make "
            "setup`, and then `millstream bench` again"
        )


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    about = "compare with other engines on this machine, from a source checkout"
    parser = commands.add_parser(
        "bench",
        help=about,
        description=f"{about.capitalize()}. All parts take an hour or so. Engines that are not "
        "installed are left out; `make peers` installs them.",
        epilog="examples: millstream bench --quick\n"
        "          millstream bench --part latency --out latency.json\n\n"
        "exit codes: 0 done, 1 failed, or worse than --against, 2 wrong arguments",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="less data, in ten minutes")
    parser.add_argument("--smoke", action="store_true", help="hardly any data: does it run?")
    parser.add_argument(
        "--part", action="append", default=[], metavar="PART", help="only this one; repeatable"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="fail if results are worse than these"
    )
    parser.add_argument(
        "--even-if-loaded", action="store_true", help="also while the machine does other work"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    checkout = find_checkout([Path(millstream.__file__).parent, Path.cwd()])
    find_java()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        results = options.out or (Path(folder, "results.json") if options.json else None)
        status = _run(
            comparison(options, checkout, results),
            environment(checkout, os.environ),
            out=sys.stderr if options.json else None,
        )
        if options.json and results is not None and results.exists():
            print(results.read_text(encoding="utf-8").rstrip())
    return status if status in (0, _WRONG_ARGUMENTS) else 1


def find_checkout(starts: Iterable[Path]) -> Path:
    """The source checkout that one of these folders is in; the first one counts most."""
    for start in starts:
        for folder in (start.resolve(), *start.resolve().parents):
            if _is_checkout(folder):
                return folder
    raise NoSourceCheckoutError(str(Path.cwd()))


def _is_checkout(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    if not (folder / _COMPARISON).is_file() or not project.is_file():
        return False
    try:
        described = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    return bool(described.get("project", {}).get("name") == "millstream")


def comparison(options: argparse.Namespace, checkout: Path, results: Path | None) -> list[str]:
    """The command that runs the comparison, and writes the results to a file if there is one."""
    flags = [f"--{name}" for name in ("quick", "smoke") if getattr(options, name)]
    if options.even_if_loaded:
        flags.append("--even-if-loaded")
    parts = [word for part in options.part for word in ("--part", part)]
    files = [
        word
        for name, file in (("--json", results), ("--against", options.against))
        if file is not None
        for word in (name, str(file))
    ]
    return [sys.executable, str(checkout / _COMPARISON), *flags, *parts, *files]


def environment(checkout: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables with which the package of the checkout is measured, whichever is installed."""
    path = [str(checkout / "src"), inherited.get("PYTHONPATH", "")]
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _run(command: list[str], variables: Mapping[str, str], out: Any) -> int:
    """Run the comparison; it ends the engines' processes itself, so it is given time to."""
    with subprocess.Popen(command, env=variables, stdout=out) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # On a terminal, it has received the signal as well.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
