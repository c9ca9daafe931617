"""The commands for running workflows, against a served run that stands in for a real one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.api.client import ApiClient, ApiUnreachableError
from millstream.api.contract import SlotRange
from millstream.api.server import ApiServer
from millstream.api.tokens import TokenBook
from millstream.cli import main
from millstream.cli.run_client import NoSuchRunError, SeveralRunsError, find_run, label_of
from millstream.errors import ConfigError
from millstream.wire.process_identity import this_process
from millstream.wire.run_registry import ApiAccess, RegisteredRun, RunRegistry
from tests.api.stand_in import StandInRun

NOWHERE = ApiAccess("http://127.0.0.1:1", "viewer", "operator", 2e9)


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRegistry:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return RunRegistry(tmp_path)


@pytest.fixture
def served() -> StandInRun:
    return StandInRun()


@pytest.fixture
def run(registry: RunRegistry, served: StandInRun) -> Iterator[RegisteredRun]:
    """A registered run with a server."""
    tokens = TokenBook()
    server = ApiServer(served, tokens, host="127.0.0.1", port=0, version="1")
    server.start()
    viewer, operator = tokens.issue("viewer"), tokens.issue("operator")
    access = ApiAccess(server.url, viewer.text, operator.text, viewer.expires)
    found = registered("words", access)
    registry.add(found)
    yield found
    server.close()


def registered(workflow: str, api: ApiAccess | None = NOWHERE, number: int = 1) -> RegisteredRun:
    return RegisteredRun(workflow, this_process(), number, 86_400.0, api)


@pytest.fixture
def say(run: RegisteredRun, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds, and give what it printed."""

    def run_command(*arguments: str) -> str:
        assert main(arguments) == 0, capsys.readouterr()
        printed = capsys.readouterr()
        assert run.api is not None
        assert run.api.operator not in printed.out and run.api.viewer not in printed.out
        assert printed.err == ""
        return printed.out

    return run_command


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    """The one line that a failed command prints."""
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    return line


# -- looking ---------------------------------------------------------------------------------


def test_without_runs_ps_lists_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == "no workflow is running\n"
    assert main(["ps", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_ps_lists_runs_with_epoch_and_nodes(say: Callable[..., str]) -> None:
    headers, row = say("ps").splitlines()

    assert headers.split() == ["NAME", "PID", "HOST", "STARTED", "EPOCH", "NODES"]
    assert row.split()[:2] == ["words", str(os.getpid())]
    assert "1970-01-02 00:00:00Z" in row and row.endswith("7  2 of 2")


def test_ps_lists_a_run_that_does_not_answer_or_has_no_api(
    say: Callable[..., str], registry: RunRegistry
) -> None:
    registry.add(registered("words", number=2))
    registry.add(registered("silent", None))

    found = json.loads(say("ps", "--json"))

    assert {run["name"]: run["committed"] for run in found} == {
        f"words:{os.getpid()}.1": 7,
        f"words:{os.getpid()}.2": None,
        "silent": None,
    }
    assert "no answer" in say("ps")


def test_status_shows_epochs_and_nodes(say: Callable[..., str], served: StandInRun) -> None:
    printed = say("status", "words")

    assert "7 committed, 8 under way, 7 in the store" in printed
    assert "2 of 2 active, no slots pending, ring 1" in printed
    last = ["00000000", "active", "2048", "2048", "2048", "localhost", "1", "100", "2048-4095"]
    assert printed.splitlines()[-1].split() == last
    run = replace(served.now.run, committed=-1, under_way=None, durable=-1)
    served.now = replace(served.now, run=run)
    assert "none committed, none in the store" in say("status", "words")


def test_status_shows_what_is_wrong(say: Callable[..., str], served: StandInRun) -> None:
    run = replace(
        served.now.run,
        pending=1,
        is_settled=False,
        lost=["c" * 32],
        fenced_alive=["c" * 32],
        waits=["epoch 8 waits for node bbbbbbbb"],
        failure="all is lost",
    )
    nodes = [served.now.nodes[0], replace(served.now.nodes[1], role="leaving", is_slow=True)]
    served.now = replace(served.now, run=run, nodes=nodes)

    printed = say("status", "words")

    assert "1 leaving, 1 of 4096 slots pending" in printed
    assert printed.splitlines()[-5:] == [
        "lost: cccccccc",
        "fenced while alive: cccccccc",
        "slow: 00000000",
        "waits: epoch 8 waits for node bbbbbbbb",
        "failed: all is lost",
    ]


def test_status_as_json_is_the_snapshot_and_what_the_registry_knows(
    say: Callable[..., str],
) -> None:
    found = json.loads(say("status", "words", "--json"))

    assert (found["pid"], found["run"]["committed"]) == (os.getpid(), 7)
    assert len(found["nodes"]) == len(found["ring"]["tokens"]) == 2


def test_events_are_printed_with_the_time_of_day(
    say: Callable[..., str], served: StandInRun
) -> None:
    served.add_event("join", "node aaaaaaaa joined")

    assert say("events", "words") == (
        "2001-09-09 01:46:40Z  epoch 7     join        node aaaaaaaa joined\n"
    )
    assert [event["number"] for event in json.loads(say("events", "words", "--json"))] == [1]


@pytest.mark.parametrize("as_json", [False, True])
def test_following_events_prints_each_of_them_once(
    run: RegisteredRun,
    served: StandInRun,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served.add_event("join", "first")
    more = iter(["second", None])

    def sleep(seconds: float) -> None:
        text = next(more)
        if text is not None:
            served.add_event("scale", text)

    monkeypatch.setattr("millstream.cli.control.time.sleep", sleep)
    with pytest.raises(StopIteration):
        main(["events", "words", "--follow", *(["--json"] if as_json else [])])

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    if as_json:
        assert [json.loads(line)["kind"] for line in lines] == ["join", "scale"]


def test_a_link_to_the_dashboard_is_printed(say: Callable[..., str]) -> None:
    assert "/login?code=" in say("dashboard", "words")
    assert json.loads(say("dashboard", "words", "--viewer", "--json"))["right"] == "viewer"


def test_top_prints_a_snapshot_where_there_is_no_terminal(say: Callable[..., str]) -> None:
    assert json.loads(say("top", "words"))["run"]["workflow"] == "wordcount"


# -- state -----------------------------------------------------------------------------------


def test_state_is_read_by_key_in_pages_and_by_size(say: Callable[..., str]) -> None:
    assert "counts" in say("state", "jobs", "words")
    assert say("state", "get", "words", "counts", "mill").split() == [
        *("epoch", "7", "KEY", "STATE", "mill", "4")
    ]
    found = json.loads(say("state", "scan", "words", "counts", "--limit", "2", "--json"))
    assert [item["text"] for item in found["items"]] == ["a", "bc"]
    assert say("state", "top", "words", "counts", "-n", "1").split()[-2:] == ["def", "3"]


def test_state_is_exported_to_a_new_parquet_file(
    say: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.parquet"

    assert say("state", "export", "words", "counts", str(file)) == "3 keys of epoch 7\n"
    assert pq.read_table(file).to_pydict() == {"key": ["a", "bc", "def"], "value": [1, 2, 3]}
    assert "is there already" in refused(capsys, "state", "export", "words", "counts", str(file))


# -- changing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["scale", "words", "4"], ("scale", 4)),
        (["rebalance", "words"], ("rebalance", None)),
        (["drain", "words", "3f9c"], ("drain", "3f9c")),
        (
            ["move", "words", "0-511,700", "3f9c"],
            ("move", ((SlotRange(start=0, stop=512), SlotRange(start=700, stop=701)), "3f9c")),
        ),
    ],
)
def test_a_change_is_sent_and_its_progress_printed(
    arguments: list[str], change: tuple[str, object], say: Callable[..., str], served: StandInRun
) -> None:
    assert say(*arguments) == "done: 2 of 2 active, no slots pending\n"
    assert served.changes == [change]
    assert json.loads(say(*arguments, "--json"))["run"]["pending"] == 0
    assert say(*arguments, "--dry-run").startswith(arguments[0])
    assert served.changes == [change] * 2
    unsettle(served)
    assert say(*arguments).startswith("accepted: ")


def unsettle(served: StandInRun) -> None:
    served.now = replace(served.now, run=replace(served.now.run, is_settled=False))


def test_a_run_is_stopped(say: Callable[..., str], served: StandInRun) -> None:
    say("stop", "words", "--dry-run")
    assert served.changes == []
    say("stop", "words")
    assert served.changes == [("stop", None)]


def test_a_change_that_is_not_done_in_time_is_a_failure(
    run: RegisteredRun, served: StandInRun, capsys: pytest.CaptureFixture[str]
) -> None:
    unsettle(served)

    line = refused(capsys, "drain", "words", "b", "--wait", "0")

    assert line.startswith("millstream: not done after 0 s")
    assert main(["drain", "words", "b", "--wait", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["run"]["is_settled"] is False


def test_waiting_asks_again_until_the_change_is_done(
    run: RegisteredRun, served: StandInRun
) -> None:
    assert run.api is not None
    unsettle(served)
    now, settled = [0.0], served.now

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 1.0:
            served.now = replace(settled, run=replace(settled.run, is_settled=True))

    client = ApiClient(run.api.url, run.api.viewer)
    assert client.await_settled(60.0, lambda: now[0], sleep).run.is_settled
    assert now[0] == pytest.approx(1.0, abs=0.3)


def test_what_is_rejected_is_printed_on_a_line(
    run: RegisteredRun, served: StandInRun, capsys: pytest.CaptureFixture[str]
) -> None:
    served.failure = ConfigError("nodes must be from 1 to 4 (slots), got 9")

    line = refused(capsys, "status", "words")

    assert line == "millstream: nodes must be from 1 to 4 (slots), got 9"


# -- by address ------------------------------------------------------------------------------


def test_a_run_is_reached_by_its_address_with_a_token(
    run: RegisteredRun,
    served: StandInRun,
    registry: RunRegistry,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run.api is not None
    address = run.api.url.removeprefix("http://")
    assert "needs a token" in refused(capsys, "status", "--at", address)
    monkeypatch.setenv("MILLSTREAM_TOKEN", run.api.viewer)
    assert main(["status", "--at", address]) == 0
    capsys.readouterr()
    assert "operator" in refused(capsys, "scale", "--at", address, "4")
    monkeypatch.setenv("MILLSTREAM_TOKEN", run.api.operator)
    assert main(["scale", "--at", address, "4"]) == 0
    assert served.changes == [("scale", 4)]


def test_a_command_needs_a_name_or_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a workflow" in refused(capsys, "status")


# -- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale"],
        ["scale", "words", "0"],
        ["scale", "words", "many"],
        ["scale", "words", "4", "--wait", "-1"],
        ["move", "words", "5-3", "node"],
        ["move", "words", "", "node"],
        ["move", "1"],
        ["drain"],
        ["events", "words", "--last"],
    ],
)
def test_wrong_arguments_end_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ")


# -- which run -------------------------------------------------------------------------------


def test_a_name_without_a_run_ends_with_status_3(
    run: RegisteredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "status", "letters", status=3)

    assert line == "millstream: no workflow 'letters' of yours is running here; these are: words"


def test_runs_of_one_name_are_told_apart_by_process() -> None:
    here = registered("words")
    there = replace(here, process=replace(here.process, pid=here.process.pid + 1))
    again, letters = replace(here, number=2), registered("letters")
    pid = here.process.pid

    assert find_run("letters", [here, letters]) is letters
    assert find_run(f"words:{pid}", [here, there, letters]) is here
    assert find_run(f"words:{pid + 1}", [here, again, there]) is there
    assert find_run(f"words:{pid}.2", [here, again, there]) is again
    with pytest.raises(SeveralRunsError, match=f"words:{pid}, words:{pid + 1}$"):
        find_run("words", [here, there, letters])
    with pytest.raises(SeveralRunsError, match=f"words:{pid}.1, words:{pid}.2$"):
        find_run(f"words:{pid}", [here, again, there])
    with pytest.raises(NoSuchRunError, match=f"these are: words:{pid}, words:{pid + 1}, letters"):
        find_run(f"words:{pid + 2}", [here, there, letters])
    with pytest.raises(NoSuchRunError, match="none is"):
        find_run("words", [])
    every = [here, again, there, letters]
    assert all(find_run(label_of(run, every), every) is run for run in every)


def test_several_runs_of_a_name_are_refused_with_the_choices(
    run: RegisteredRun, registry: RunRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add(registered("words", number=2))

    line = refused(capsys, "rebalance", "words")

    assert f"2 workflows 'words' are running; say which one: words:{os.getpid()}.1" in line


def test_a_driver_that_has_ended_is_no_run(
    run: RegisteredRun, registry: RunRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = replace(this_process(), start=1)
    registry.add(replace(registered("letters"), process=ended))

    refused(capsys, "status", "letters", status=3)


# -- drivers that do not answer --------------------------------------------------------------


def test_a_driver_that_does_not_listen_is_reported_on_a_line(
    registry: RunRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add(registered("words"))

    line = refused(capsys, "status", "words")

    assert "http://127.0.0.1:1 does not answer: nothing listens there" in line


def test_a_run_without_an_api_says_how_to_get_one(
    registry: RunRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add(registered("words", None))

    assert "start it without dashboard=False" in refused(capsys, "status", "words")


def test_a_wrong_token_is_reported_on_a_line(
    run: RegisteredRun,
    served: StandInRun,
    registry: RunRegistry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run.api is not None
    registry.add(registered("letters", replace(run.api, operator="wrong")))

    assert "valid token" in refused(capsys, "scale", "letters", "2")
    assert served.changes == []


def test_a_driver_that_is_stopped_is_reported_when_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ApiUnreachableError, match="busy or stopped"):
            ApiClient(url, "token", 0.2).snapshot()
