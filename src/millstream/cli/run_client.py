"""Finding a running workflow by name, and asking its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millstream.errors import MillstreamError
from millstream.wire.calls import UnreachableError, call
from millstream.wire.control import DescribeRun, RunDescription
from millstream.wire.request import Request
from millstream.wire.run_registry import RegisteredRun

A = TypeVar("A")
_TIMEOUT = 30.0
_GLANCE = 3.0
_POLL = 0.2
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


class RunUnreachableError(MillstreamError):
    """The driver of a workflow did not answer."""

    def __init__(self, workflow: str, pid: int, host: str, reason: str) -> None:
        super().__init__(workflow, pid, host, reason)
        self.workflow, self.pid, self.host, self.reason = workflow, pid, host, reason

    def __str__(self) -> str:
        return (
            f"the driver of {self.workflow!r} (process {self.pid} on {self.host}) does not "
            f"answer: {self.reason}"
        )


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


class RunClient:
    """Sends requests to the coordinator of a run."""

    def __init__(self, run: RegisteredRun) -> None:
        self._run = run

    def ask(self, request: Request[A], timeout: float = _TIMEOUT) -> A:
        """Send a request; raise the coordinator's own error, or ``RunUnreachableError``."""
        try:
            return call(self._run.endpoint, request, timeout)
        except UnreachableError as problem:
            process = self._run.process
            reason = _reason(problem)
            raise RunUnreachableError(
                self._run.workflow, process.pid, process.host, reason
            ) from None

    def await_settled(
        self, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> RunDescription:
        """Wait until no change is under way, or until the time is over."""
        deadline = clock() + seconds
        while True:
            now = self.ask(DescribeRun())
            if now.is_settled or clock() >= deadline:
                return now
            sleep(_POLL)


def describe_all(runs: Sequence[RegisteredRun]) -> list[RunDescription | None]:
    """Describe runs, all at once; None for one that does not answer soon."""
    if not runs:
        return []
    with ThreadPoolExecutor(min(len(runs), _AT_ONCE)) as pool:
        return list(pool.map(_described, runs))


def _described(run: RegisteredRun) -> RunDescription | None:
    try:
        return RunClient(run).ask(DescribeRun(), _GLANCE)
    except MillstreamError:
        return None


def _reason(problem: UnreachableError) -> str:
    if problem.refused:
        return f"nothing listens at {problem.address}; it has ended, or runs on another host"
    if problem.timed_out:
        return "it is busy or stopped; a change that was asked for may still be made"
    return problem.reason
