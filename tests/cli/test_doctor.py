from __future__ import annotations

import json
import sys
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


@pytest.mark.parametrize(
    ("answer", "is_fine"),
    [("{version}", True), ("3.2", False), ("", False), ("{version} pyarrow xxhash", False)],
)
def test_the_python_of_workers_is_asked_for_its_version_and_packages(
    answer: str,
    is_fine: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python.write_text(f"#!/bin/sh\necho {answer.format(version=version)}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))

    _, found = findings(capsys)

    assert found["python of workers"] is is_fine


def test_a_python_of_workers_with_all_packages_is_fine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)

    _, found = findings(capsys)

    assert found["python of workers"] is True
