"""The registry of running workflows: private, complete, and without entries of the dead."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from json import dump
from pathlib import Path
from typing import Any, TextIO

import pytest

from millstream.wire.process_identity import this_process
from millstream.wire.run_registry import (
    FOLDERS,
    ApiAccess,
    RegisteredRun,
    Registration,
    RegistryUnusableError,
    RunRegistry,
)

ACCESS = ApiAccess("http://127.0.0.1:1", "viewer's", "operator's", 2e9)
REGISTERING = """
import sys
from pathlib import Path
from millstream.wire.process_identity import this_process
from millstream.wire.run_registry import RegisteredRun, RunRegistry
registry = RunRegistry(Path(sys.argv[1]))
for number in range(1, 21):
    registry.add(RegisteredRun("w" + sys.argv[2], this_process(), number, 1.0))
sys.stdin.read()
"""


def run_named(workflow: str, started: float = 17.5) -> RegisteredRun:
    return RegisteredRun(workflow, this_process(), 1, started, ACCESS)


@pytest.fixture
def registry(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path.joinpath(*FOLDERS)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# -- entries ---------------------------------------------------------------------------------


def test_without_a_folder_there_are_no_runs(registry: RunRegistry, tmp_path: Path) -> None:
    assert registry.runs() == []
    registry.remove("nothing.json")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_listed_as_it_was_added_until_it_is_removed(registry: RunRegistry) -> None:
    older, newer = run_named("older", 1.0), run_named("newer", 2.0)
    name = registry.add(newer)
    registry.add(older)

    assert registry.runs() == [older, newer]
    registry.remove(name)
    assert registry.runs() == [older]
    registry.remove(name)


def test_tokens_are_preserved_renewed_and_not_shown(registry: RunRegistry) -> None:
    name = registry.add(run_named("w"))
    assert [run.api for run in registry.runs()] == [ACCESS]
    renewed = replace(ACCESS, viewer="another")

    registry.put(name, replace(run_named("w"), api=renewed))

    assert [run.api for run in registry.runs()] == [renewed]
    assert "another" not in repr(renewed) and "operator's" not in repr(renewed)


def test_folder_and_entry_are_the_users_alone(registry: RunRegistry, folder: Path) -> None:
    before = os.umask(0)
    try:
        name = registry.add(run_named("w"))
    finally:
        os.umask(before)

    assert [mode(path) for path in (folder.parent, folder, folder / name)] == [0o700, 0o700, 0o600]
    assert os.listdir(folder) == [name]


def test_a_folder_that_others_can_read_is_closed(registry: RunRegistry, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o755)

    registry.add(run_named("w"))

    assert mode(folder) == 0o700


# -- drivers that have ended -----------------------------------------------------------------


def test_the_entry_of_a_driver_that_has_ended_is_removed(
    registry: RunRegistry, folder: Path
) -> None:
    earlier = replace(this_process(), start=this_process().start - 1)
    registry.add(replace(run_named("ended"), process=earlier))
    living = registry.add(run_named("living"))

    assert [run.workflow for run in registry.runs()] == ["living"]
    assert os.listdir(folder) == [living]


def test_the_entry_of_a_driver_on_another_host_remains(registry: RunRegistry, folder: Path) -> None:
    elsewhere = replace(this_process(), boot="another", host="another", pid=1)
    name = registry.add(replace(run_named("w"), process=elsewhere))

    assert [run.process.host for run in registry.runs()] == ["another"]
    assert os.listdir(folder) == [name]


def test_a_crashed_writer_leaves_nothing_for_long(registry: RunRegistry, folder: Path) -> None:
    registry.add(run_named("w"))
    old, new = folder / ".part-1-a.json", folder / ".part-1-b.json"
    old.write_text("{")
    new.write_text("{")
    os.utime(old, (1.0, 1.0))

    assert len(registry.runs()) == 1
    assert not old.exists() and new.exists()


def test_an_entry_that_cannot_be_written_leaves_no_part(
    registry: RunRegistry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("millstream.wire.run_registry.os.fsync", full)

    with pytest.raises(RegistryUnusableError, match="no space left"):
        registry.add(run_named("w"))
    assert os.listdir(folder) == []


def test_an_entry_is_not_seen_before_it_is_complete(
    registry: RunRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[RegisteredRun]] = []

    def observed_dump(entry: dict[str, Any], writer: TextIO) -> None:
        seen.append(registry.runs())
        dump(entry, writer)

    def observed_sync(file: int) -> None:
        seen.append(registry.runs())

    monkeypatch.setattr("millstream.wire.run_registry.json.dump", observed_dump)
    monkeypatch.setattr("millstream.wire.run_registry.os.fsync", observed_sync)

    registry.add(run_named("w"))

    assert seen == [[], []] and caplog.text == ""
    assert len(registry.runs()) == 1


# -- other people ----------------------------------------------------------------------------


@pytest.mark.parametrize("open_mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_folder_that_others_can_write_is_rejected(
    registry: RunRegistry, tmp_path: Path, depth: int, open_mode: int
) -> None:
    registry.add(run_named("w"))
    unsafe = tmp_path.joinpath(*FOLDERS[:depth])
    unsafe.chmod(open_mode)

    with pytest.raises(RegistryUnusableError, match="others can write it"):
        registry.runs()
    with pytest.raises(RegistryUnusableError, match="others can write it"):
        registry.add(run_named("w"))
    assert mode(unsafe) == open_mode


@pytest.mark.parametrize("depth", [1, 2])
def test_a_linked_folder_is_rejected(registry: RunRegistry, tmp_path: Path, depth: int) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link = tmp_path.joinpath(*FOLDERS[:depth])
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(target)

    for use in (lambda: registry.add(run_named("w")), registry.runs):
        with pytest.raises(RegistryUnusableError, match="symbolic link"):
            use()
    assert os.listdir(target) == []


def test_a_folder_of_another_user_is_rejected(
    registry: RunRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(run_named("w"))
    mine = os.geteuid()
    monkeypatch.setattr("millstream.wire.run_registry.os.geteuid", lambda: mine + 1)

    with pytest.raises(RegistryUnusableError, match="another user"):
        registry.runs()


def _linked(path: Path) -> None:
    elsewhere = path.with_suffix(".elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _without_tokens(path: Path) -> None:
    entry = json.loads(path.read_text())
    del entry["api"]["operator"]
    path.write_text(json.dumps(entry))


@pytest.mark.parametrize(
    "spoil",
    [
        _linked,
        _pipe,
        _without_tokens,
        lambda path: path.chmod(0o640),
        lambda path: path.chmod(0o606),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.write_bytes(b"\xff{"),
    ],
)
def test_an_entry_that_cannot_be_trusted_or_read_is_ignored(
    registry: RunRegistry, folder: Path, spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spoiled = registry.add(run_named("spoiled"))
    registry.add(run_named("whole"))
    spoil(folder / spoiled)

    with caplog.at_level(logging.WARNING, "millstream"):
        assert [run.workflow for run in registry.runs()] == ["whole"]
    assert spoiled in caplog.text


# -- several at once -------------------------------------------------------------------------


def test_writers_and_readers_do_not_disturb_each_other(registry: RunRegistry, folder: Path) -> None:
    def add_and_remove(number: int) -> None:
        for _ in range(20):
            name = registry.add(run_named(f"w{number}"))
            assert f"w{number}" in [run.workflow for run in registry.runs()]
            registry.remove(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_and_remove, range(4)))
    assert os.listdir(folder) == []


def test_two_processes_that_register_at_once_are_both_listed(
    registry: RunRegistry, tmp_path: Path
) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", REGISTERING, tmp_path, who], stdin=subprocess.PIPE)
        for who in "ab"
    ]
    wanted = {(f"w{who}", number) for who in "ab" for number in range(1, 21)}
    try:
        found: set[tuple[str, int]] = set()
        while found != wanted and all(writer.poll() is None for writer in writers):
            seen = {(run.workflow, run.number) for run in registry.runs()}
            assert found <= seen
            found = seen
        assert found == wanted
    finally:
        for writer in writers:
            writer.communicate()
    assert registry.runs() == []


# -- of the user -----------------------------------------------------------------------------


def test_the_state_folder_is_that_of_the_environment(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    registered = Registration("w", ACCESS, environment=environment)
    Registration("w", ACCESS, environment=environment)

    first, second = RunRegistry.of_user(environment).runs()
    assert (first.workflow, first.api, first.process) == ("w", ACCESS, this_process())
    assert second.number == first.number + 1
    registered.remove()
    assert RunRegistry.of_user(environment).runs() == [second]
    registered.remove()


@pytest.mark.parametrize("home", [{}, {"XDG_STATE_HOME": "relative"}, {"XDG_STATE_HOME": ""}])
def test_otherwise_it_is_in_the_home_folder(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    Registration("w", ACCESS, environment=home)

    assert len(os.listdir(tmp_path.joinpath(".local", "state", *FOLDERS))) == 1


def test_a_run_does_not_depend_on_its_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")

    with caplog.at_level(logging.WARNING, "millstream"):
        Registration("w", ACCESS, environment={"XDG_STATE_HOME": str(tmp_path / "file")}).remove()
    assert "cannot find this run" in caplog.text and "XDG_STATE_HOME" in caplog.text


def test_an_entry_in_a_folder_that_is_gone_need_not_be_removed(tmp_path: Path) -> None:
    registered = Registration("w", ACCESS, environment={"XDG_STATE_HOME": str(tmp_path / "state")})
    (tmp_path / "state").rename(tmp_path / "moved")

    registered.remove()


def test_an_entry_in_a_folder_that_became_unsafe_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registered = Registration("w", ACCESS, environment={"XDG_STATE_HOME": str(tmp_path)})
    tmp_path.joinpath(*FOLDERS).chmod(0o777)

    with caplog.at_level(logging.WARNING, "millstream"):
        registered.remove()
    assert "others can write it" in caplog.text
