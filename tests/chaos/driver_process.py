"""A driver as a process of its own: what it reports, and all the processes that it has started."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import millstream
from tests.chaos.clusters import QUICK_JAVA
from tests.chaos.moments import MARK
from tests.chaos.processes import marked, send

ROOT = Path(__file__).parents[2]
LOG_LINES = 60


class Driver:
    """A driver's process, and all that it has started."""

    def __init__(self, module: str, folder: Path, number: int, *given: object) -> None:
        """Run ``module`` with the folder, and whatever else it is ``given``, as its arguments."""
        self.number = number
        self._mark = uuid.uuid4().hex
        self._out, self._err = folder / f"driver{number}.out", folder / f"driver{number}.err"
        package = str(Path(millstream.__file__).parents[1])
        paths = [package, str(ROOT), os.environ.get("PYTHONPATH", "")]
        pickles = [base64.b64encode(pickle.dumps(one)).decode() for one in given]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder), *pickles],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                start_new_session=True,
                env={
                    **os.environ,
                    MARK: self._mark,
                    "JDK_JAVA_OPTIONS": QUICK_JAVA,
                    "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
                },
            )

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the driver has reported so far."""
        lines = self._out.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def reports(self, name: str) -> list[Any]:
        return [fact[name] for fact in self.facts if name in fact]

    @property
    def ended(self) -> str:
        """How it ended, in its own words; nothing if it was killed."""
        found = self.reports("ended")
        return str(found[-1]) if found else ""

    def left(self) -> list[int]:
        """The processes of it that are there."""
        return marked(self._mark)

    def wake(self) -> None:
        send(self.left(), signal.SIGCONT)

    def kill(self) -> None:
        send(self.left(), signal.SIGKILL)
        self.process.wait()

    def log(self) -> list[str]:
        """Its reports, and the end of its log, without Java's stack traces."""
        lines = self._err.read_text(errors="replace").splitlines()
        lines_of_log = [line for line in lines if not line.startswith("\tat ")]
        return [f"  driver {self.number}: {self.facts}", *lines_of_log[-LOG_LINES:]]
