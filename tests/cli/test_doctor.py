from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli import main


def findings(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    status = main(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    return status, {finding["about"]: finding["is_fine"] for finding in found}


def test_the_doctor_checks_what_runs_need(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, found = findings(capsys, "--store", f"files://{tmp_path}/store")

    assert found[f"store files://{tmp_path}/store"] is True
    assert {"java", "python", "memory", "loopback port", "registry", "clock"} < set(found)
    assert found["extra dashboard"] is True


def test_what_is_wrong_is_an_exit_code_and_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.2")

    status, found = findings(capsys, "--store", "nowhere://store")

    assert status == 1
    assert found["java"] is False and found["python of workers"] is False
    assert found["store nowhere://store"] is False
    assert main(["doctor"]) == 1
    assert "WRONG" in capsys.readouterr().out
