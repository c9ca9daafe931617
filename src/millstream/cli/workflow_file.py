"""Workflows in files: ``run``, ``submit``, ``explain`` and ``draw`` of ``app.py[:flow]``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import millstream
from millstream.checkpoints.tables import as_text
from millstream.cli.argument_types import number
from millstream.cli.java import find_java
from millstream.errors import ConfigError
from millstream.flow.workflow import Workflow

_WHAT = "a Python file, and the name of its workflow, or of a function that returns one"


def add_to(commands: Any) -> None:
    """Add the commands."""
    run = _command(commands, "run", _run, "run a workflow until its input ends, or Ctrl-C")
    _add_options(run)
    submit = _command(
        commands,
        "submit",
        _submit,
        "run a workflow through spark-submit; options after -- are for spark-submit",
    )
    _add_options(submit)
    submit.add_argument("--dry-run", action="store_true", help="only print the command")
    submit.add_argument("spark", nargs="*", metavar="-- OPTION", help="of spark-submit")
    _command(commands, "explain", _explain, "print the plan of a workflow")
    draw = _command(commands, "draw", _draw, "print the graph of a workflow for Mermaid")
    draw.add_argument("--dot", action="store_true", help="for Graphviz")


def _command(commands: Any, name: str, command: Any, about: str) -> Any:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example: millstream {name} app.py:flow",
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


# -- spark-submit ----------------------------------------------------------------------------


def _submit(options: argparse.Namespace) -> int:
    load(options.app)  # before anything is sent to a cluster
    with tempfile.TemporaryDirectory(prefix="millstream-submit-") as folder:
        command = submission(options, Path(folder))
        if options.dry_run:
            print(as_text({"command": command}) if options.json else shlex.join(command))
            return 0
        find_java()
        return os.spawnv(os.P_WAIT, command[0], command)


def submission(options: argparse.Namespace, folder: Path) -> list[str]:
    """The command that runs a workflow on a cluster, with this package and the user's file."""
    path, _, name = options.app.partition(":")
    package = Path(millstream.__file__).parent
    archive = shutil.make_archive(str(folder / "millstream"), "zip", package.parent, package.name)
    driver = folder / "millstream_driver.py"
    app = Path(path).name + (f":{name}" if name else "")
    given = [f"--{option}={value}" for option, value in _given(options).items()]
    # Spark puts files of the application into the working folder of the driver.
    driver.write_text(
        "import sys\nfrom millstream.cli import main\n"
        f"sys.exit(main({['run', app, *(o for o in given if not o.startswith('--master'))]!r}))\n"
    )
    files = [archive, path]
    return [
        spark_submit(),
        *(["--master", options.master] if options.master else []),
        "--py-files",
        ",".join(files),
        "--files",
        path,
        *options.spark,
        str(driver),
    ]


def spark_submit() -> str:
    """The spark-submit of SPARK_HOME, or of the installed pyspark."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = importlib.util.find_spec("pyspark")
        if found is None or not found.submodule_search_locations:
            raise ConfigError("there is no spark-submit: install pyspark, or set SPARK_HOME")
        home = found.submodule_search_locations[0]
    command = Path(home, "bin", "spark-submit")
    if not os.access(command, os.X_OK):
        raise ConfigError(f"{command} cannot be run; set SPARK_HOME to an installation of Spark")
    return str(command)
