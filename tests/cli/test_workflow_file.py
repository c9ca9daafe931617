"""Workflows in files: found, explained, drawn, and packaged for spark-submit."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.workflow_file import load, submission
from millstream.errors import ConfigError

APP = """
import millstream as ms
import helper

def flow_of(name):
    flow = ms.Workflow(name)
    words = flow.source("words", ms.read.replay([{"word": helper.WORD}]))
    words.key_by(len).reduce("lengths", ms.count())
    return flow

flow = flow_of("first")

def other():
    return flow_of("other")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text('WORD = "mill"\n')
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def test_a_workflow_is_found_by_name_by_function_or_as_the_only_one(app: Path) -> None:
    assert load(str(app)).name == "first"
    assert load(f"{app}:flow").name == "first"
    assert load(f"{app}:other").name == "other"


def test_what_is_no_workflow_is_refused_with_the_choices(app: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        load("nothing.py")
    with pytest.raises(ConfigError, match="'helper' of"):
        load(f"{app}:helper")
    app.write_text(APP + "\nsecond = flow_of('second')\n")
    with pytest.raises(ConfigError, match=r"has 2 workflows \(flow, second\)"):
        load(str(app))


def test_a_workflow_is_explained_and_drawn(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(app)]) == 0
    assert capsys.readouterr().out.startswith("workflow first: 1 source")
    assert main(["draw", str(app), "--dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert main(["draw", str(app), "--json"]) == 0
    assert "lengths" in json.loads(capsys.readouterr().out)["drawing"]


def test_a_submission_has_the_package_the_file_and_the_options(app: Path, tmp_path: Path) -> None:
    options = argparse.Namespace(
        app=f"{app}:flow",
        nodes=4,
        master="yarn",
        checkpoint="/data/checkpoint",
        policy=None,
        spark=["--num-executors", "4"],
    )

    command = submission(options, tmp_path)

    assert command[0].endswith("bin/spark-submit")
    assert command[1:3] == ["--master", "yarn"]
    archive, shipped = command[command.index("--py-files") + 1].split(",")
    assert "millstream/cli/__init__.py" in zipfile.ZipFile(archive).namelist()
    assert shipped == str(app)
    assert command[-3:-1] == ["--num-executors", "4"]
    driver = Path(command[-1]).read_text()
    assert "['run', 'app.py:flow', '--nodes=4', '--checkpoint=/data/checkpoint']" in driver
