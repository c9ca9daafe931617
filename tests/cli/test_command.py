from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millstream
from millstream.cli import main
from millstream.cli.demo.story import Demo
from millstream.errors import MillstreamError

COMMAND = [sys.executable, "-c", "import sys; from millstream.cli import main; sys.exit(main())"]


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"millstream {millstream.__version__}\n"


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_without_java_the_demo_prints_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main(["demo"]) == 1
    reported = capsys.readouterr().err
    assert "Java 17" in reported and "Traceback" not in reported


def test_an_error_of_a_run_is_printed_without_a_stack_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Demo) -> int:
        raise MillstreamError("the mill is broken")

    monkeypatch.setattr(Demo, "run", fail)
    monkeypatch.setattr("millstream.cli.find_java", lambda: None)

    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "millstream: the mill is broken\n"


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_kills_grows_rebalances_and_shrinks_and_is_exact() -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--quick", "--no-browser"], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "exact: yes"
    assert "words per second" in done.stdout
    for scene in ("a node is killed", "2 to 4 nodes", "a hot key", "4 to 2 nodes"):
        assert scene in done.stdout
    assert "dashboard (this link opens it once): http://127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr and "WARN" not in done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_ends_the_demo_without_a_stack_and_without_leftovers(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [*COMMAND, "demo"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert demo.stderr is not None
    lines = []
    for line in demo.stderr:
        lines.append(line)
        if "epoch 0 in" in line:
            break
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, rest = demo.communicate(timeout=120)
    reported = "".join(lines) + rest

    assert demo.returncode == 130, reported
    assert rest.splitlines()[-1] == "stopped"
    assert "KeyboardInterrupt" not in reported
    assert [path.name for path in tmp_path.glob("millstream-*")] == []
    assert _left_over(tmp_path) == []


def _left_over(folder: Path) -> list[str]:
    """Processes that still work with this folder for temporary files, given a moment to end."""
    mark = f"TMPDIR={folder}".encode()
    found: list[str] = []
    for _ in range(100):
        found = [
            process.name
            for process in Path("/proc").glob("[0-9]*")
            if mark in _environment(process).split(b"\0")
        ]
        if not found:
            break
        time.sleep(0.1)
    return found


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
