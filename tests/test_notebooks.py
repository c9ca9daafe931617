"""The example notebook runs as it stands, and shows workflow, run and status as tables."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import millstream

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def executed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, list[Any]]:
    """The outputs of the cells, by their ids."""
    package = str(Path(millstream.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = stored()
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return {cell.id: cell.get("outputs", []) for cell in notebook.cells}


def html_of(outputs: list[Any]) -> str:
    [shown] = [output.data["text/html"] for output in outputs if "data" in output]
    return str(shown)


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in stored().cells:
        assert not cell.get("outputs") and not cell.get("execution_count")


@pytest.mark.spark
@pytest.mark.slow
def test_a_workflow_a_run_and_its_status_show_themselves_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = executed(monkeypatch, tmp_path)

    flow, run, status = (html_of(shown[cell]) for cell in ("flow", "run", "status"))
    for row in ("lines", "count", "out"):
        assert f">{row}</td>" in flow
    assert "Run of wordcount: finished" in run and "<summary>Graph</summary>" in run
    assert flow in run
    assert "Run of wordcount: finished" in status
    assert re.search(r">\d+ committed</td>", status)
    assert "rows/s, epochs take" in status and ">2 of 2 active</td>" in status
    slots = re.findall(r"<td[^>]*>active</td><td[^>]*>([\d,]+)</td>", status)
    assert len(slots) == 2 and all(int(each.replace(",", "")) > 0 for each in slots)
    for html in (flow, run, status):
        assert "<script" not in html and "<style" not in html
    [state] = shown["state"]
    assert "('the', {'n': 2000})" in state.data["text/plain"]
