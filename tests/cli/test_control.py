"""The commands for running workflows, against a server that answers as a coordinator does."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import main, run_client
from millstream.cli.run_client import (
    NoSuchRunError,
    RunClient,
    RunUnreachableError,
    SeveralRunsError,
    find_run,
    label_of,
)
from millstream.elastic.events import Event
from millstream.errors import ConfigError
from millstream.wire.auth import new_secret
from millstream.wire.calls import Endpoint
from millstream.wire.control import (
    DescribeRun,
    DrainNode,
    EventPage,
    ListEvents,
    MoveSlots,
    NodeStatus,
    Rebalance,
    RunDescription,
    ScaleTo,
)
from millstream.wire.process_identity import this_process
from millstream.wire.request import Request
from millstream.wire.run_registry import RegisteredRun, RunRegistry
from millstream.wire.serving import RunServer, tcp_address
from millstream.wire.tls import new_identity

SECRET = new_secret()
NOWHERE = Endpoint("grpc+unix:///nowhere/s.sock", SECRET)
NODE = NodeStatus("a" * 32, "host-1", "executor-1", "zone-1", 17, 3, 2, 1)
OTHER = replace(NODE, node="b" * 32, slots=1, role="leaving")
SETTLED = RunDescription(
    workflow="words",
    incarnation=2,
    committed=41,
    under_way=42,
    durable=40,
    ring=7,
    slots=4,
    target=1,
    pending=0,
    is_settled=True,
    nodes=(NODE,),
    owned={NODE.node: (range(4),)},
    lost=(),
    fenced_alive=(),
    slow=(),
    waits=(),
    failure=None,
)
MOVING = replace(
    SETTLED,
    pending=1,
    is_settled=False,
    nodes=(NODE, OTHER),
    owned={NODE.node: (range(2), range(3, 4)), OTHER.node: (range(2, 3),)},
    lost=("c" * 32, "d" * 32),
    fenced_alive=("d" * 32,),
    slow=(OTHER.node,),
    waits=("epoch 42 waits for node bbbbbbbb",),
    failure="all is lost",
)
EVENTS = (
    Event(time=1.0, epoch=-1, kind="join", text="node aaaaaaaa joined", facts={"node": NODE.node}),
    Event(time=3.0, epoch=7, kind="scale", text="from 1 to 2 nodes", facts={"nodes": 2}),
)


class Coordinator:
    """Answers requests as a test wants, and records them."""

    def __init__(self) -> None:
        self.described = SETTLED
        self.changed = MOVING
        self.error: Exception | None = None
        self.asked: list[Request[Any]] = []

    def answer(self, request: Request[Any]) -> Any:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        if isinstance(request, ListEvents):
            events = tuple(event for event in EVENTS if event.time > request.since)
            return EventPage(10.0, events)
        return self.described if isinstance(request, DescribeRun) else self.changed


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRegistry:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return RunRegistry(tmp_path)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def run(registry: RunRegistry, coordinator: Coordinator) -> Iterator[RegisteredRun]:
    """A registered run with a server."""
    # Not tmp_path: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as folder:
        server = RunServer(f"grpc+unix://{folder}/s.sock", SECRET, coordinator.answer)
        with server:
            found = registered("words", server.endpoint)
            registry.add(found)
            yield found


def registered(
    workflow: str,
    endpoint: Endpoint = NOWHERE,
    number: int = 1,
) -> RegisteredRun:
    return RegisteredRun(workflow, this_process(), number, 86_400.0, endpoint)


@pytest.fixture
def say(run: RegisteredRun, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds, and give what it printed."""

    def run_command(*arguments: str) -> str:
        assert main(arguments) == 0, capsys.readouterr()
        printed = capsys.readouterr()
        assert SECRET.hex() not in printed.out and printed.err == ""
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
    assert "1970-01-02 00:00:00Z" in row and row.endswith("41  1 of 1")


def test_ps_lists_a_run_that_does_not_answer(
    say: Callable[..., str], registry: RunRegistry
) -> None:
    registry.add(registered("words", number=2))

    found = json.loads(say("ps", "--json"))

    assert [run["name"] for run in found] == [
        f"words:{os.getpid()}.1",
        f"words:{os.getpid()}.2",
    ]
    assert [run["committed"] for run in found] == [41, None]
    assert "no answer" in say("ps")


def test_status_shows_epochs_and_nodes(say: Callable[..., str], coordinator: Coordinator) -> None:
    printed = say("status", "words")

    assert "41 committed, 42 under way, 40 in the store" in printed
    assert "1 of 1 active, no slots pending, ring 7" in printed
    assert printed.splitlines()[-1].split() == (
        ["aaaaaaaa", "active", "3", "2", "1", "host-1", "executor-1", "17", "0-3"]
    )
    coordinator.described = replace(SETTLED, committed=-1, under_way=None, durable=-1)
    assert "none committed, none in the store" in say("status", "words")


def test_status_shows_what_is_wrong(say: Callable[..., str], coordinator: Coordinator) -> None:
    many = tuple(range(slot, slot + 1) for slot in range(0, 100, 2))
    coordinator.described = replace(MOVING, owned={NODE.node: many})

    printed = say("status", "words")

    assert "1 of 1 active, 1 leaving, 1 of 4 slots pending, ring 7" in printed
    assert "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28…" in printed
    assert printed.splitlines()[-5:] == [
        "lost: cccccccc, dddddddd",
        "fenced while alive: dddddddd",
        "slow: bbbbbbbb",
        "waits: epoch 42 waits for node bbbbbbbb",
        "failed: all is lost",
    ]


def test_status_as_json_has_everything_but_the_secret(
    say: Callable[..., str], coordinator: Coordinator
) -> None:
    coordinator.described = MOVING

    found = json.loads(say("status", "words", "--json"))

    assert found["owned"] == {NODE.node: "0-1,3", OTHER.node: "2"}
    assert [node["role"] for node in found["nodes"]] == ["active", "leaving"]
    assert (found["workflow"], found["pid"], found["active"]) == ("words", os.getpid(), 1)
    assert (found["is_settled"], found["failure"]) == (False, "all is lost")
    assert "secret" not in found


def test_events_are_printed_with_the_time_of_day(
    say: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.control.time.time", lambda: 100.0)

    assert say("events", "words").splitlines() == [
        "1970-01-01 00:01:31Z  start       join        node aaaaaaaa joined",
        "1970-01-01 00:01:33Z  epoch 7     scale       from 1 to 2 nodes",
    ]
    found = json.loads(say("events", "words", "--json"))
    assert [event["time"] for event in found] == [91.0, 93.0]
    assert found[1]["facts"] == {"nodes": 2}


@pytest.mark.parametrize("as_json", [False, True])
def test_following_events_prints_each_of_them_once(
    run: RegisteredRun,
    coordinator: Coordinator,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = iter([None, None])

    def sleep(seconds: float) -> None:
        next(pauses)

    monkeypatch.setattr("millstream.cli.control.time.sleep", sleep)
    with pytest.raises(StopIteration):
        main(["events", "words", "--follow", *(["--json"] if as_json else [])])

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EVENTS)
    assert [request.since for request in coordinator.asked] == [float("-inf"), 3.0, 3.0]  # type: ignore[attr-defined]
    if as_json:
        assert [json.loads(line)["kind"] for line in lines] == ["join", "scale"]


# -- changing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["scale", "words", "4"], ScaleTo(4)),
        (["rebalance", "words"], Rebalance()),
        (["drain", "words", "3f9c"], DrainNode("3f9c")),
        (["move", "words", "0-511,700", "3f9c"], MoveSlots((range(512), range(700, 701)), "3f9c")),
    ],
)
def test_a_change_is_sent_and_its_progress_printed(
    arguments: list[str],
    request_: Request[Any],
    say: Callable[..., str],
    coordinator: Coordinator,
) -> None:
    assert say(*arguments) == "accepted: 1 of 1 active, 1 leaving, 1 of 4 slots pending\n"
    assert coordinator.asked == [request_]
    assert json.loads(say(*arguments, "--json"))["pending"] == 1
    coordinator.changed = SETTLED
    assert say(*arguments) == "done: 1 of 1 active, no slots pending\n"


def test_waiting_ends_when_the_change_is_done(
    say: Callable[..., str], coordinator: Coordinator
) -> None:
    assert say("scale", "words", "4", "--wait", "60").startswith("done: ")
    assert coordinator.asked == [ScaleTo(4), DescribeRun()]


def test_a_change_that_is_not_done_in_time_is_a_failure(
    run: RegisteredRun, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.described = MOVING

    line = refused(capsys, "drain", "words", "b", "--wait", "0")

    assert line.startswith("millstream: not done after 0 s") and "1 leaving" in line
    assert main(["drain", "words", "b", "--wait", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_settled"] is False


def test_waiting_asks_again_until_the_time_is_over(
    run: RegisteredRun, coordinator: Coordinator
) -> None:
    coordinator.described = MOVING
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert RunClient(run).await_settled(1.0, lambda: now[0], sleep) == MOVING
    assert now[0] == pytest.approx(1.0, abs=0.3)
    assert len(coordinator.asked) == pytest.approx(1.0 / run_client._POLL, abs=2)


def test_what_the_coordinator_rejects_is_printed_on_a_line(
    run: RegisteredRun, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.error = ConfigError("nodes must be from 1 to 4 (slots), got 9")

    line = refused(capsys, "scale", "words", "9")

    assert line == "millstream: nodes must be from 1 to 4 (slots), got 9"


# -- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["scale", "words"],
        ["scale", "words", "0"],
        ["scale", "words", "many"],
        ["scale", "words", "4", "--wait", "-1"],
        ["move", "words", "5-3", "node"],
        ["move", "words", "", "node"],
        ["move", "words", "1"],
        ["drain", "words"],
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


@pytest.mark.parametrize(
    "command", ["ps", "status", "events", "scale", "rebalance", "drain", "move"]
)
def test_the_help_has_an_example_and_the_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    printed = capsys.readouterr().out
    assert f"example: millstream {command}" in printed
    assert "0 done, 1 refused or failed, 2 wrong arguments, 3 no such" in printed


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


def test_a_run_that_listens_on_the_network_is_reached_with_its_certificate(
    registry: RunRegistry, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = new_identity()
    address = tcp_address("127.0.0.1", identity)
    with RunServer(address, SECRET, coordinator.answer, identity=identity) as server:
        elsewhere = replace(this_process(), boot="another", host="another")
        registry.add(replace(registered("words", server.endpoint), process=elsewhere))

        assert main(["rebalance", "words"]) == 0
    assert coordinator.asked == [Rebalance()]
    assert capsys.readouterr().out.startswith("accepted: ")


# -- drivers that do not answer --------------------------------------------------------------


def test_a_driver_that_does_not_listen_is_reported_on_a_line(
    registry: RunRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add(registered("words"))

    line = refused(capsys, "status", "words")

    assert f"the driver of 'words' (process {os.getpid()} on" in line
    assert "nothing listens at grpc+unix:///nowhere/s.sock" in line


def test_a_wrong_secret_is_reported_on_a_line(
    run: RegisteredRun,
    coordinator: Coordinator,
    registry: RunRegistry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = Endpoint(run.endpoint.address, new_secret())
    registry.add(registered("letters", wrong))

    line = refused(capsys, "scale", "letters", "2")

    assert "does not hold the run's secret" in line
    assert coordinator.asked == []


def test_a_driver_that_is_stopped_is_reported_when_the_time_is_over(run: RegisteredRun) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ms-") as folder,
        socket.socket(socket.AF_UNIX) as silent,
    ):
        silent.bind(f"{folder}/s.sock")
        silent.listen()
        stopped = replace(run, endpoint=Endpoint(f"grpc+unix://{folder}/s.sock", SECRET))

        with pytest.raises(RunUnreachableError, match="busy or stopped"):
            RunClient(stopped).ask(DescribeRun(), 0.2)
