from __future__ import annotations

import subprocess
import sys
import threading
from types import ModuleType

import pytest

from millstream.state.pickling import dumps, loads
from tests.state.python_values import ODD, same

SCRIPT = """
import sys
from millstream.state.pickling import loads
value = loads(bytes.fromhex(sys.argv[1]))
print(type(value).__name__, value.n, value.doubled())
"""


def test_unusual_values_survive_pickling() -> None:
    assert same([loads(dumps(value)) for value in ODD], ODD)


def test_an_object_of_a_class_that_cannot_be_imported_is_pickled_by_value() -> None:
    module = ModuleType("nowhere_to_be_found")
    exec(
        "class Counter:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def doubled(self): return 2 * self.n\n",
        module.__dict__,
    )

    data = dumps(module.Counter(3))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, data.hex()], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Counter", "3", "6"]
    assert type(loads(data)) is type(loads(data))


def test_what_cannot_be_pickled_at_all_is_an_error() -> None:
    with pytest.raises(TypeError, match="lock"):
        dumps([threading.Lock()])
