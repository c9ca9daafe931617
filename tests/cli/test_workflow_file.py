"""Workflows in files: found, explained and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.workflow_file import load
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
    plan = capsys.readouterr().out
    assert plan.startswith("workflow first: 1 source")
    assert main(["explain", str(app), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == plan.removesuffix("\n")
    assert main(["draw", str(app), "--dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert main(["draw", str(app), "--json"]) == 0
    assert "lengths" in json.loads(capsys.readouterr().out)["drawing"]
