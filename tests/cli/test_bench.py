from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millstream
from millstream.cli import main
from millstream.cli.bench import NoSourceCheckoutError, find_checkout

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import json, pathlib, sys
import millstream
arguments = sys.argv[1:]
if "unknown" in arguments:
    sys.exit(2)
print("throughput  1.5")
if "--json" in arguments:
    file = pathlib.Path(arguments[arguments.index("--json") + 1])
    file.write_text(json.dumps([{"name": "arguments", "value": arguments}]))
    pathlib.Path(__file__).with_name("source").write_text(millstream.__file__)
if "--against" in arguments:
    raise SystemExit("worse than before")
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source checkout with a comparison that takes no time, as the working folder."""
    package = tmp_path / "src" / "millstream"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "millstream"\n')
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "compare.py").write_text(STAND_IN)
    monkeypatch.setattr("millstream.cli.bench.find_java", lambda: None)
    monkeypatch.setattr(millstream, "__file__", "/nowhere/millstream/__init__.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_package_in_a_checkout_finds_its_own_benchmarks() -> None:
    assert find_checkout([ROOT / "src" / "millstream"]) == ROOT


def test_the_comparison_runs_with_the_options_and_prints_its_table(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "docs").mkdir()
    os.chdir(checkout / "docs")

    assert main(["bench", "--quick", "--part", "latency", "--out", "results.json"]) == 0

    assert capfd.readouterr().out == "throughput  1.5\n"
    [passed] = json.loads(Path("results.json").read_text())
    assert passed["value"] == ["--quick", "--part", "latency", "--json", "results.json"]


def test_the_package_of_the_checkout_is_measured(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--json"]) == 0

    [passed] = json.loads(capfd.readouterr().out)
    assert passed["value"][0] == "--json"
    measured = (checkout / "benchmarks" / "source").read_text()
    assert measured == str(checkout / "src" / "millstream" / "__init__.py")


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--against", "old.json"], 1), (["--part", "unknown"], 2)]
)
def test_a_comparison_that_fails_gives_its_exit_code(
    checkout: Path, arguments: list[str], status: int
) -> None:
    assert main(["bench", *arguments]) == status


def test_outside_of_a_checkout_the_error_says_what_to_do(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "pyproject.toml").write_text('[project]\nname = "another"\n')

    assert main(["bench"]) == 1

    reported = capsys.readouterr().err
    assert "not in a source checkout" in reported and "make setup" in reported
    assert str(checkout) in reported and "Traceback" not in reported
    error = NoSourceCheckoutError("here")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_ctrl_c_waits_until_the_comparison_has_ended(checkout: Path) -> None:
    (checkout / "benchmarks" / "compare.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path('ended').touch()))\n"
        "pathlib.Path('begun').touch()\n"
        "time.sleep(60)\n"
    )
    # A process that is started in the background inherits that Ctrl+C is ignored.
    command = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys, millstream; from millstream.cli import bench, main; "
        "bench.find_java = lambda: None; millstream.__file__ = '/nowhere/x/y'; "
        "sys.exit(main(['bench']))"
    )
    process = subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (checkout / "begun").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)

    _, reported = process.communicate(timeout=60)
    assert reported == "stopped\n"
    assert process.returncode == 130
    assert (checkout / "ended").exists()
