"""Finding a running workflow, by name in the user's registry or by address, and asking it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from millstream.api.client import ApiClient
from millstream.api.contract import Right, Snapshot
from millstream.errors import ConfigError, MillstreamError
from millstream.wire.run_registry import RegisteredRun, RunRegistry

TOKEN = "MILLSTREAM_TOKEN"  # noqa: S105 - the name of a variable
_GLANCE = 3.0
_AT_ONCE = 16


class NoSuchRunError(MillstreamError):
    """No running workflow has this name."""

    def __init__(self, name: str, running: tuple[str, ...]) -> None:
        super().__init__(name, running)
        self.name, self.running = name, running

    def __str__(self) -> str:
        others = f"these are: {', '.join(self.running)}" if self.running else "none is"
        return f"no workflow {self.name!r} of yours is running here; {others}"


class SeveralRunsError(MillstreamError):
    """Several running workflows have this name."""

    def __init__(self, name: str, choices: tuple[str, ...]) -> None:
        super().__init__(name, choices)
        self.name, self.choices = name, choices

    def __str__(self) -> str:
        return (
            f"{len(self.choices)} workflows {self.name!r} are running; say which one: "
            f"{', '.join(self.choices)}"
        )


class NoApiError(MillstreamError):
    """A running workflow has no HTTP API."""

    def __init__(self, workflow: str) -> None:
        super().__init__(workflow)
        self.workflow = workflow

    def __str__(self) -> str:
        return (
            f"the workflow {self.workflow!r} runs without its HTTP API: start it without "
            "dashboard=False, where 'millstream[dashboard]' is installed"
        )


@dataclass(frozen=True)
class Connection:
    """A run that can be asked, and what the registry knows of it, if it was found there."""

    client: ApiClient
    run: RegisteredRun | None


def connect(options: argparse.Namespace, right: Right = "viewer") -> Connection:
    """The run that a command is about: ``--at`` with a token of the environment, or a NAME."""
    if options.at is not None:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise ConfigError(f"--at needs a token: set {TOKEN} in the environment")
        url = options.at if "://" in options.at else f"http://{options.at}"
        return Connection(ApiClient(url, token), None)
    if options.name is None:
        raise ConfigError("name a workflow, or its address with --at; `millstream ps` lists names")
    run = find_run(options.name, RunRegistry.of_user().runs())
    return Connection(client_of(run, right), run)


def client_of(run: RegisteredRun, right: Right = "viewer") -> ApiClient:
    """A client with one of the registered tokens."""
    if run.api is None:
        raise NoApiError(run.workflow)
    return ApiClient(run.api.url, run.api.operator if right == "operator" else run.api.viewer)


def find_run(name: str, runs: Sequence[RegisteredRun]) -> RegisteredRun:
    """The run that is meant by NAME, NAME:PID or NAME:PID.NUMBER."""
    workflow, _, which = name.partition(":")
    named = [run for run in runs if run.workflow == workflow]
    found = [run for run in named if not which or which in _labels(run)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SeveralRunsError(name, tuple(label_of(run, found) for run in found))
    raise NoSuchRunError(name, tuple(label_of(run, runs) for run in runs))


def label_of(run: RegisteredRun, among: Sequence[RegisteredRun]) -> str:
    """The shortest text by which ``find_run`` finds this run and no other one."""
    same = [other for other in among if other.workflow == run.workflow]
    if len(same) == 1:
        return run.workflow
    pids = [other.process.pid for other in same]
    pid, numbered = _labels(run)
    return f"{run.workflow}:{pid if pids.count(run.process.pid) == 1 else numbered}"


def _labels(run: RegisteredRun) -> tuple[str, str]:
    pid = run.process.pid
    return str(pid), f"{pid}.{run.number}"


def describe_all(runs: Sequence[RegisteredRun]) -> list[Snapshot | None]:
    """Describe runs, all at once; None for one that does not answer soon."""
    if not runs:
        return []
    with ThreadPoolExecutor(min(len(runs), _AT_ONCE)) as pool:
        return list(pool.map(_described, runs))


def _described(run: RegisteredRun) -> Snapshot | None:
    try:
        return None if run.api is None else _glance(run.api.url, run.api.viewer)
    except MillstreamError:
        return None


def _glance(url: str, token: str) -> Snapshot:
    return ApiClient(url, token, _GLANCE).snapshot()
