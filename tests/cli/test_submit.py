"""Workflows in files, packaged for spark-submit, and run by it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.submit import Submission, submission

COMMAND = Path(sys.executable).with_name("millstream")
APP = """
import json
import millstream as ms
import app_helper
from millstream.dashboard import PAGE
from pyspark import SparkContext

def pairs(word):
    yield app_helper.shown(word), 1

def show(rows, epoch):
    context = SparkContext._active_spark_context
    facts = {
        "rows": sorted((row.key, row.value) for row in rows),
        "master": context.master,
        "setting": context.getConf().get("spark.test.setting"),
        "package": ms.__file__,
        "has_page": PAGE.is_dir(),
        "listening": app_helper.listening(),
    }
    print("FACTS", json.dumps(facts), flush=True)

def flow():
    flow = ms.Workflow("submitted")
    words = flow.source("words", ms.read.replay([{"word": word} for word in "a b a".split()]))
    counts = words.map_reduce("count", map=pairs, reduce=ms.count())
    counts.sink("out", ms.write.callback(show))
    return flow
"""
HELPER = """
import os
from pathlib import Path

def shown(word):
    return word.upper()

def listening():
    # The addresses at which the driver, its JVM and the nodes accept connections.
    inodes = {
        os.readlink(fd) for process in Path("/proc").glob("[0-9]*")
        if f"SCENE={os.environ['SCENE']}".encode() in read(process / "environ").split(b"\\0")
        for fd in files(process / "fd")
    }
    rows = [
        line.split() for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return sorted({row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes})

def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""

def files(folder):
    try:
        return [file for file in folder.iterdir() if file.is_symlink()]
    except OSError:
        return []
"""
LOOPBACK = (
    "0100007F",
    "0000000000000000FFFF00000100007F",  # the same address, as IPv6 shows it
    "00000000000000000000000001000000",
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "apps"
    folder.mkdir()
    (folder / "app_helper.py").write_text(HELPER)
    path = folder / "app.py"
    path.write_text(APP)
    return path


def submitted(app: Path, folder: Path, *spark: str, master: str | None = "yarn") -> Submission:
    options = argparse.Namespace(app=f"{app}:flow", master=master, spark=list(spark))
    return submission(options, ["--nodes=4"], folder)


def test_a_submission_has_the_package_the_file_and_the_options(app: Path, tmp_path: Path) -> None:
    command = submitted(app, tmp_path, "--num-executors", "4").command

    assert command[0].endswith("bin/spark-submit")
    assert command[1:3] == ["--master", "yarn"]
    archive, shipped = command[command.index("--py-files") + 1].split(",")
    names = zipfile.ZipFile(archive).namelist()
    assert {"millstream/cli/__init__.py", "millstream/dashboard/static/index.html"} <= set(names)
    # Stores are found by entry points.
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)
    assert shipped == str(app)
    assert command[-3:-1] == ["--num-executors", "4"]
    driver = Path(command[-1]).read_text()
    assert f"app, name, options = {str(app)!r}, ':flow', ['--nodes=4']" in driver


def test_files_of_the_user_go_with_those_of_the_submission(app: Path, tmp_path: Path) -> None:
    """Of an option that is repeated, spark-submit takes the last one alone."""
    command = submitted(app, tmp_path, "--py-files", "a.zip,b.py", "--files=c.csv").command

    assert command.count("--py-files") == command.count("--files") == 1
    assert command[command.index("--py-files") + 1].endswith(f"/millstream.zip,{app},a.zip,b.py")
    assert command[command.index("--files") + 1] == f"{app},c.csv"


def test_the_driver_runs_this_python_unless_it_is_on_another_host(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)

    here = submitted(app, tmp_path).environment
    there = submitted(app, tmp_path, "--deploy-mode", "cluster").environment
    local = submitted(app, tmp_path, master="local[2]").environment

    assert here["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert "PYSPARK_DRIVER_PYTHON" not in there
    assert "SPARK_LOCAL_IP" not in here and local["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_what_is_missing_here_is_reported_before_anything_is_submitted(
    app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert main(["submit", f"{app}:flow"]) == 1

    reported = capsys.readouterr().err
    assert "cannot be submitted from here" in reported
    assert "java: Spark needs Java" in reported


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_workflow_of_a_file_runs_and_listens_on_loopback_alone(
    app: Path, tmp_path: Path, command: str
) -> None:
    """From another folder, without our Python on the path, on the master that was asked for."""
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "SCENE": str(tmp_path)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "SPARK_MASTER"):
        environment.pop(name, None)
    options = ["--master", "local[3]", "--nodes", "2", "--json"]
    given = ["--", "--conf", "spark.test.setting=theirs"] if command == "submit" else []

    done = subprocess.run(
        [COMMAND, command, f"{app}:flow", *options, *given],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=environment,
    )

    assert done.returncode == 0, (done.stdout, done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    facts = [json.loads(line.removeprefix("FACTS ")) for line in lines]
    assert [row for each in facts for row in each["rows"]] == [["A", 2], ["B", 1]]
    assert facts[0]["master"] == "local[3]" and facts[0]["has_page"]
    if command == "submit":
        assert "millstream-package-" in facts[0]["package"]
        assert facts[0]["setting"] == "theirs"
    hosts = {address.partition(":")[0] for address in facts[0]["listening"]}
    assert hosts and hosts <= set(LOOPBACK), facts[0]["listening"]
