"""The clock, the tasks and the processes of a simulated world, without any network.

A task is a thread, but only the holder of the baton runs. A task that waits takes the next event
off the virtual clock itself and hands the baton straight to the task that the event wakes, so a
switch costs one thread switch, and none at all when a task wakes itself. Events that nothing
orders get random instants: the seed alone decides who comes first.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

from millstream.sim.tasks import (
    Crashed,
    Process,
    StalledError,
    Task,
    Worker,
    stacks,
    stay_on_one_core,
)

T = TypeVar("T")

# What a thread takes to get going once it may: up to this many seconds of virtual time.
_JITTER = 1e-4
# Real seconds that a task may compute without reaching a primitive.
_PATIENCE = 60.0


class Kernel:
    """Processes and their tasks on one virtual clock; exactly one task runs at a time."""

    def __init__(self, seed: int, trace_limit: int = 10_000) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.on_step: Callable[[str, str], None] | None = None
        self.fingerprint = 0  # of all lines of the trace, also those that it has dropped
        self.switches = 0
        self.current: Task | None = None
        self.ran: set[str] = set()  # the processes that have run since the step before this one
        self._trace: deque[str] = deque(maxlen=trace_limit)
        self._processes: dict[str, Process] = {}
        self._tasks: dict[int, Task] = {}
        # (instant, urgency, serial, owner, task to wake, its ticket, or action to take)
        self._events: list[tuple[float, int, int, Process | None, Any, int, Any]] = []
        self._serial = 0
        self._idle: list[Worker] = []
        self._workers: list[Worker] = []
        self._outside = threading.Lock()
        self._outside.acquire()
        self._until = 0.0
        self._running = self._stop = self._in_hook = self._lost = self._closed = False
        self._bug: BaseException | None = None
        self._stalled = ""
        self._awaited: Callable[[], None] | None = None

    # The story.

    @property
    def trace(self) -> list[str]:
        """The last events, one line each."""
        return list(self._trace)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        line = f"t={self.now:.3f} {text}"
        self._trace.append(line)
        self.fingerprint = zlib.crc32(line.encode(), self.fingerprint)

    def story(self, last: int = 60) -> str:
        """The last lines of the trace as text."""
        return "\n".join(self.trace[-last:])

    # Processes.

    def alive(self, name: str) -> bool:
        """Whether a process of this name exists and has not crashed."""
        process = self._processes.get(name)
        return process is not None and process.alive

    def crash(self, name: str) -> None:
        """End a process at once; its tasks unwind before any other task runs."""
        if self.alive(name):
            self.note(f"{name} crashes")
            self._end(self._processes[name])

    def pause(self, name: str) -> None:
        """Stop a process, as SIGSTOP does."""
        if self.alive(name) and not self._processes[name].paused:
            self.note(f"{name} pauses")
            self._processes[name].paused = True

    def resume(self, name: str) -> None:
        """Resume a paused process; messages that arrived meanwhile are delivered now."""
        if self.alive(name) and self._processes[name].paused:
            self.note(f"{name} resumes")
            process = self._processes[name]
            process.paused = False
            parked, process.parked = process.parked, []
            for task, ticket, action in parked:
                self._push(self.now + self._jitter(), process, task, ticket, action)

    def maybe(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def at(self, delay: float, action: Callable[[], None]) -> None:
        """Take an action after a delay, outside of all processes; it must not wait."""
        self.schedule(delay, action)

    def schedule(
        self, delay: float, action: Callable[[], None], owner: Process | None = None
    ) -> None:
        """Like ``at``; the action of an owner waits while it is paused and dies with it."""
        self._push(self.now + delay, owner, None, 0, action)

    def _create(self, name: str) -> Process:
        if self.alive(name):
            raise ValueError(f"there is a process {name} already; crash it first")
        process = self._processes[name] = Process(name)
        return process

    def _end(self, process: Process) -> None:
        process.alive = False
        for task in list(self._tasks.values()):
            if task.process is process and task is not self.current:
                if task.baton is None:
                    del self._tasks[task.serial]
                else:
                    self._push(self.now, None, task, task.ticket, None, urgency=0)

    # Tasks, for the primitives of a process.

    @property
    def in_hook(self) -> bool:
        """Whether the scenario's hook runs, and not a task."""
        return self._in_hook

    def serial(self) -> int:
        """A number that is unique in this world."""
        self._serial += 1
        return self._serial

    def start(self, process: Process, name: str, function: Callable[[], None]) -> None:
        """Run a function as a new task of a process."""
        serial = self.serial()
        task = self._tasks[serial] = Task(process, name, serial, function)
        self._push(self.now + self._jitter(), process, task, 0, None)

    def step(self, what: str, process: Process | None = None) -> Task:
        """The running task, at a primitive (of this process); faults are injected here."""
        task = self.current
        if task is None or (process is not None and task.process is not process):
            owner = f" of {process.name}" if process else ""
            raise RuntimeError(f"{what!r}: a primitive{owner}, used by {task or 'no task'}")
        self.check(task)
        if self.on_step is not None and not self._in_hook:
            self._in_hook = True
            try:
                self.on_step(task.process.name, what)
            except Exception as problem:  # of the scenario: no task may swallow it
                self._in_hook = False
                self._stop_with(problem)
                self.wait("for the end of the world")
            finally:
                self._in_hook = False
            self.ran = {task.process.name}
            self.check(task)
            if task.process.paused:
                self.linger()
        return task

    def wait(self, what: str, timeout: float | None = None) -> None:
        """Pass the baton on until the running task is woken, or the timeout has passed."""
        task = self._task()
        self.check(task)
        task.waits = what
        if timeout is not None:
            self._push(self.now + timeout, task.process, task, task.ticket, None)
        self.current = None
        following = self._next()
        if following is not task:
            assert task.baton is not None
            self._hand(following)
            task.baton.acquire()
        self.current = task
        self.ran.add(task.process.name)
        self.check(task)

    def wake(self, task: Task, ticket: int) -> None:
        """Wake a task, if it is still in the wait of that ticket."""
        self._push(self.now + self._jitter(), task.process, task, ticket, None)

    def linger(self) -> None:
        """Let other tasks run first, at random."""
        task, delay = self._task(), self._jitter()
        instant = self.now + delay
        alone = not self._events or self._events[0][0] > instant
        if alone and not task.process.paused and instant <= self._until and not self._stop:
            self.now = instant
        else:
            self.wait("its turn", delay)

    def _task(self) -> Task:
        if self.current is None:
            raise RuntimeError("only a task can wait: use World.run or spawn")
        return self.current

    def check(self, task: Task) -> None:
        """Raise ``Crashed`` in a task whose process has crashed."""
        if not task.process.alive:
            raise Crashed(task.process.name)

    def _jitter(self) -> float:
        return self.random.random() * _JITTER

    # The run.

    def run(self, main: Callable[[], T], process: str, until: float) -> T:
        """Run a function as a task of a process, and the world with it, until it returns.

        Raises what it raised, or the first bug of any other task, or ``StalledError``. ``until`` is
        an instant of the virtual clock.
        """
        if self._running or self._closed:
            raise RuntimeError("the world runs already, or is closed")
        if not self.alive(process):
            raise ValueError(f"no process {process} is alive: create it first")
        results: list[T] = []
        errors: list[BaseException] = []

        def awaited() -> None:
            try:
                results.append(main())
            except BaseException as problem:
                errors.append(problem)
            if self._awaited is awaited:  # else the run has stalled before
                self._stop = True

        self._until, self._stop, self._stalled, self._awaited = until, False, "", awaited
        self.start(self._processes[process], "main", awaited)
        self._drive()
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug
        if errors:
            raise errors[0]
        if results:
            return results[0]
        raise StalledError(f"{self._stalled}\n{self._waiting()}\n{self.story()}")

    def close(self) -> None:
        """End all processes and unwind all tasks; no thread is left."""
        if self._closed or (self._lost and not self._outside.acquire(timeout=1.0)):
            return  # a task that never waits runs on in its thread
        self._closed = True
        self._events.clear()
        for task in self._tasks.values():
            task.process.alive = False
        self._tasks = {s: task for s, task in self._tasks.items() if task.baton is not None}
        for task in self._tasks.values():
            self._push(self.now, None, task, task.ticket, None, urgency=0)
        self._stop, self.on_step = False, None
        self._drive()
        for worker in self._workers:
            worker.baton.release()
        for worker in self._workers:
            assert worker.thread is not None
            worker.thread.join()

    def _drive(self) -> None:
        """Give the baton away until the world stops."""
        self._running = True
        following = self._next()
        if following is not None:
            self._hand(following)
            try:
                self._watch()
            except BaseException:  # an interrupt, most likely: the next wait ends the run
                self._stop = self._lost = True
                if self._outside.acquire(timeout=1.0):
                    self._lost = self._running = False
                raise
        self._running = False

    def _watch(self) -> None:
        seen = -1
        while not self._outside.acquire(timeout=_PATIENCE):
            if seen == self.switches and self.current is not None:
                where = f"{self.current} never waits: a real lock, or an endless loop?"
                raise StalledError(f"{where}\n{stacks()}")
            seen = self.switches

    def _stop_with(self, bug: BaseException) -> None:
        self._bug, self._stop = self._bug or bug, True

    def _waiting(self) -> str:
        lines = []
        for task in self._tasks.values():
            state = " (paused)" if task.process.paused else ""
            lines.append(f"  {task}{state} waits {task.waits}")
        return "\n".join(lines)

    def _push(
        self,
        instant: float,
        owner: Process | None,
        task: Task | None,
        ticket: int,
        action: Callable[[], None] | None,
        urgency: int = 1,
    ) -> None:
        self._serial += 1
        heappush(self._events, (instant, urgency, self._serial, owner, task, ticket, action))

    def _next(self) -> Task | None:
        """Take events off the clock until one wakes a task; none: the world stops."""
        events = self._events
        while self._closed or not self._stop:
            if not events:
                self._stalled = f"at t={self.now:.3f} nothing can happen any more:"
                return None
            instant, _, _, owner, task, ticket, action = event = heappop(events)
            if task is not None and task.ticket != ticket:
                continue
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.paused:
                    owner.parked.append((task, ticket, action))
                    continue
            if instant > self._until and not self._closed:
                heappush(events, event)
                self.now = max(self.now, self._until)
                self._stalled = f"t={self._until:.3f} is over:"
                return None
            self.now = max(self.now, instant)
            if task is not None:
                woken: Task = task
                woken.ticket += 1
                return woken
            try:
                action()
            except Exception as problem:
                self._stop_with(problem)
        return None

    def _hand(self, following: Task | None) -> None:
        """Pass the baton; the caller must touch nothing after."""
        self.switches += 1
        if following is None:
            self._outside.release()
        elif following.baton is not None:
            following.baton.release()
        else:
            worker = self._idle.pop() if self._idle else self._hire()
            worker.task, following.baton = following, worker.baton
            worker.baton.release()

    def _hire(self) -> Worker:
        worker = Worker()
        worker.thread = threading.Thread(
            target=self._work, args=(worker,), name=f"sim-{len(self._workers)}", daemon=True
        )
        self._workers.append(worker)
        worker.thread.start()
        return worker

    def _work(self, worker: Worker) -> None:
        stay_on_one_core()
        worker.baton.acquire()
        while worker.task is not None:
            self._execute(worker.task)
            following = self._next()
            if following is not None and following.baton is None:
                worker.task, following.baton = following, worker.baton
                continue
            worker.task = None
            self._idle.append(worker)
            self._hand(following)
            worker.baton.acquire()

    def _execute(self, task: Task) -> None:
        self.current = task
        self.ran.add(task.process.name)
        try:
            task.function()
        except BaseException as problem:
            if task.process.alive:
                self._stop_with(problem)
        self.current = None
        task.ticket += 1
        del self._tasks[task.serial]
