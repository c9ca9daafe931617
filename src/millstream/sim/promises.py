"""What tasks wait for: the outcome of something, and locks."""

from __future__ import annotations

from typing import Generic, TypeVar

from millstream.sim.kernel import Kernel
from millstream.sim.tasks import Task

T = TypeVar("T")


class Promise(Generic[T]):
    """One outcome that one task waits for."""

    __slots__ = ("_error", "_kernel", "_ticket", "_value", "_waiter", "done")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiter: Task | None = None
        self._ticket = 0

    def resolve(self, value: T) -> None:
        """Resolve it with a value; the first outcome counts."""
        if not self.done:
            self.done, self._value = True, value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Resolve it with an error."""
        if not self.done:
            self.done, self._error = True, error
            self._wake()

    def wait(self, what: str, timeout: float | None = None) -> bool:
        """Wait in the running task; false when the time is over."""
        if not self.done:
            task = self._kernel._task()
            self._waiter, self._ticket = task, task.ticket
            self._kernel.wait(what, timeout)
            self._waiter = None
        return self.done

    def get(self) -> T:
        """The outcome of a promise that is done."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _wake(self) -> None:
        if self._waiter is not None:
            self._kernel.wake(self._waiter, self._ticket)


class SimLock:
    """A reentrant lock of tasks; who gets it next is random.

    Outside of all tasks, with the world at rest, a free lock may be taken as well.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[tuple[Task, Promise[None]]] = []

    @property
    def is_held(self) -> bool:
        """Whether some task has it."""
        return self._owner is not None

    @property
    def is_mine(self) -> bool:
        """Whether the running task has it."""
        return self._owner is not None and self._owner is self._kernel.current

    def __enter__(self) -> None:
        kernel, task = self._kernel, self._kernel.current
        if task is None or self._owner is task:
            if self._owner is not task:
                raise RuntimeError(f"{self._owner} holds this lock, and no task asks for it")
            if task is not None:
                kernel.check(task)
            self._depth += 1
            return
        kernel.step("lock")
        kernel.linger()
        if self._owner is None:
            self._owner, self._depth = task, 1
            return
        promise: Promise[None] = Promise(kernel)
        self._waiting.append((task, promise))
        promise.wait(f"for a lock that {self._owner} holds")

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        self._waiting = [entry for entry in self._waiting if entry[0].process.alive]
        if self._waiting:
            number = self._kernel.random.randrange(len(self._waiting))
            self._owner, promise = self._waiting.pop(number)
            self._depth = 1
            promise.resolve(None)
