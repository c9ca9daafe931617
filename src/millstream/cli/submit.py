"""``millstream submit``: a workflow in a file, through spark-submit.

This package goes with it, its entry points included; the packages that it needs must be installed
where the driver and the executors run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import millstream
from millstream.checkpoints.tables import as_text
from millstream.cli import doctor
from millstream.errors import ConfigError, MillstreamError

_ARCHIVE = "millstream.zip"
# The dashboard reads its files from disk. In cluster mode, the workflow's file is in the folder
# that the driver is started in.
_DRIVER = """\
import os, sys, tempfile, zipfile

app, name, options = {app!r}, {name!r}, {options!r}
if not os.path.isfile(app):
    app = os.path.basename(app)
with tempfile.TemporaryDirectory(prefix="millstream-package-") as folder:
    for path in sys.path:
        if os.path.basename(path) == {archive!r} and os.path.isfile(path):
            zipfile.ZipFile(path).extractall(folder)
            sys.path.insert(0, folder)
            break
    from millstream.cli import main

    sys.exit(main(["run", app + name, *options]))
"""


@dataclass(frozen=True)
class Submission:
    """The command that runs a workflow on a cluster, and its environment."""

    command: list[str]
    environment: dict[str, str]


def submit(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Run it; return the exit code of spark-submit. ``given`` are options of the run."""
    with tempfile.TemporaryDirectory(prefix="millstream-submit-") as folder:
        found = submission(options, given, Path(folder))
        if options.dry_run:
            text = shlex.join(found.command)
            print(as_text({"command": found.command}) if options.json else text)
            return 0
        _require_what_it_needs()
        with subprocess.Popen(found.command, env=found.environment) as running:
            try:
                return running.wait()
            except KeyboardInterrupt:  # on a terminal, the workflow has received it as well
                running.wait()
                raise


def _require_what_it_needs() -> None:
    wrong = [
        f"{each.about}: {each.text}" for each in doctor.of_this_host() if each.is_fine is False
    ]
    if wrong:
        raise MillstreamError("it cannot be submitted from here:\n    " + "\n    ".join(wrong))


def submission(options: argparse.Namespace, given: Sequence[str], folder: Path) -> Submission:
    """What runs a workflow on a cluster; files that go with it are written to ``folder``."""
    path, colon, name = options.app.partition(":")
    app = Path(path).resolve()
    driver = folder / "millstream_driver.py"
    driver.write_text(
        _DRIVER.format(app=str(app), name=colon + name, options=list(given), archive=_ARCHIVE)
    )
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--py-files", "--files", "--master", "--deploy-mode"):
        ours.add_argument(option)
    # Of an option that is repeated, spark-submit takes the last one alone.
    theirs, rest = ours.parse_known_args(options.spark)
    master = options.master or theirs.master
    command = [
        spark_submit(),
        *(["--master", master] if master else []),
        *(["--deploy-mode", theirs.deploy_mode] if theirs.deploy_mode else []),
        *("--py-files", _joined(str(_archive(folder)), str(app), theirs.py_files)),
        *("--files", _joined(str(app), theirs.files)),
        # As in a session of ours, until there is one.
        *("--conf", "spark.log.level=ERROR"),
        *rest,
        str(driver),
    ]
    return Submission(command, _environment(master or "", theirs.deploy_mode))


def _joined(*files: str | None) -> str:
    return ",".join(filter(None, files))


def _environment(master: str, deploy_mode: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    if deploy_mode != "cluster":  # else the driver is on another host
        # Otherwise spark-submit takes python3 of the PATH, which may lack what we need.
        python = environment.get("PYSPARK_PYTHON", sys.executable)
        environment.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return environment


def _archive(folder: Path) -> Path:
    """This package, and what is known about it, as a file that Python imports from."""
    package = Path(millstream.__file__).parent
    archive = folder / _ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                files.write(file, Path(package.name, file.relative_to(package)))
        about = importlib.metadata.distribution("millstream")
        for name in ("METADATA", "entry_points.txt"):
            text = about.read_text(name)
            if text is not None:
                files.writestr(f"millstream-{about.version}.dist-info/{name}", text)
    return archive


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
