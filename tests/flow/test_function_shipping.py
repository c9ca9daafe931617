from __future__ import annotations

import base64
import importlib
import json
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest

import millstream
from millstream.flow.function_shipping import is_users, is_users_file, ship

USERS_CODE = """
import dataclasses
import enum
import json

import words_helper
from words_helper import shout

LIMIT = 3


class Mood(enum.Enum):
    LOUD = "loud"


@dataclasses.dataclass
class Word:
    text: str
    mood: Mood = Mood.LOUD


def by_name_in_module(text):
    return shout(text)[:LIMIT]


def by_module(text):
    return words_helper.shout(text)


def by_class(text):
    word = Word(text)
    return json.dumps([word.text, word.mood.value])


class Shouter:
    def __init__(self, times):
        self.times = times

    def __call__(self, text):
        return shout(text) * self.times

    def method(self, text):
        return self(text)
"""

USERS_HELPER = """
def shout(text):
    return _louder(text) + "!"


def _louder(text):
    return text.upper()
"""

WORKER = """
import base64, importlib.util, json, sys
import cloudpickle
assert importlib.util.find_spec("words_of_user") is None
functions = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
print(json.dumps({name: function("stream") for name, function in functions.items()}))
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's, with a helper, that only this process can import."""
    (tmp_path / "words_of_user.py").write_text(USERS_CODE)
    (tmp_path / "words_helper.py").write_text(USERS_HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("words_of_user")
    for name in ("words_of_user", "words_helper"):
        sys.modules.pop(name, None)


def in_a_worker(data: bytes, folder: Path) -> dict[str, Any]:
    """Unpickle functions in a process that lacks the user's modules, and call them."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=base64.b64encode(data).decode(),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_functions_of_a_module_that_workers_lack_run_there(
    users: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    functions = {
        "by name": users.by_name_in_module,
        "by module": users.by_module,
        "by class": users.by_class,
        "object": users.Shouter(2),
        "method": users.Shouter(1).method,
        "lambda": lambda text: users.by_module(text) + "?",
        "library": lambda text: str(np.char.upper(text)),
    }

    found = in_a_worker(ship(functions), tmp_path_factory.mktemp("elsewhere"))

    assert found == {
        "by name": "STR",
        "by module": "STREAM!",
        "by class": '["stream", "loud"]',
        "object": "STREAM!STREAM!",
        "method": "STREAM!",
        "lambda": "STREAM!?",
        "library": "STREAM",
    }


def test_modules_that_import_each_other_are_shipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    package = tmp_path / "package_of_user"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("import package_of_user.jobs\ndef twice(x): return x * 2")
    (package / "jobs.py").write_text(
        "import package_of_user.helper\ndef run(x): return package_of_user.helper.twice(x)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    jobs = importlib.import_module("package_of_user.jobs")
    try:
        data = ship({"run": jobs.run})
    finally:
        for name in ("package_of_user", "package_of_user.jobs", "package_of_user.helper"):
            sys.modules.pop(name, None)

    assert in_a_worker(data, tmp_path_factory.mktemp("elsewhere")) == {"run": "streamstream"}


def test_what_is_installed_is_shipped_by_name() -> None:
    for function in (json.dumps, np.median, millstream.count):
        data = ship(function)

        assert function.__module__.encode() in data
        assert len(data) < 200
        assert cloudpickle.loads(data) is function


def test_shipping_leaves_no_trace_in_the_register(users: ModuleType) -> None:
    before = cloudpickle.list_registry_pickle_by_value()

    ship(users.by_module)
    with pytest.raises(TypeError):
        ship(threading.Lock())

    assert cloudpickle.list_registry_pickle_by_value() == before


def test_a_module_that_the_user_registered_stays_registered(users: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(users)
    try:
        ship(users.by_module)

        assert users.__name__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(users)


def test_a_module_known_by_two_names_is_shipped(
    users: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "words_of_old", users)

    assert cloudpickle.loads(ship(users.by_module))("a") == "A!"


def test_a_module_under_another_name_is_ignored(
    users: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stray = ModuleType("stray_module_of_user")
    stray.__file__ = str(tmp_path / "stray.py")
    monkeypatch.setitem(sys.modules, "another_name", stray)

    assert cloudpickle.loads(ship(users.by_module))("a") == "A!"


def test_what_only_looks_like_a_module_does_not_stand_in_the_way(
    users: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{name} would have to be imported")

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "no_module", "a string")

    assert cloudpickle.loads(ship(users.by_module))("a") == "A!"


def test_threads_ship_at_the_same_time(users: ModuleType) -> None:
    by_name = len(cloudpickle.dumps(users.by_class))

    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(lambda _: len(ship(users.by_class)), range(80)))

    assert min(sizes) > 5 * by_name


def test_the_users_modules_are_recognised(users: ModuleType) -> None:
    assert is_users(users)
    assert is_users(sys.modules[__name__])
    for module in (json, np, pytest, cloudpickle, millstream, sys, sys.modules["__main__"]):
        assert not is_users(module)


@pytest.mark.parametrize("name", ["pyspark", "pyspark.sql", "py4j.java_gateway"])
def test_spark_is_not_the_users_wherever_it_is_installed(name: str) -> None:
    module = ModuleType(name)
    module.__file__ = "/opt/spark/python/lib/pyspark.zip/module.py"

    assert not is_users(module)


OURS = Path(millstream.__file__).parent


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/project/jobs.py",
        "/usr/src/app/jobs.py",
        f"{sys.prefix}/../jobs.py",
        f"{sys.prefix}/src/project/jobs.py",
        f"{sysconfig.get_path('stdlib')}-of-mine/jobs.py",
    ],
)
def test_files_outside_of_installations_are_the_users(file: str) -> None:
    assert is_users_file(file)


@pytest.mark.skipif("site-packages" in OURS.parts, reason="all beside us is installed")
def test_files_beside_ours_are_the_users() -> None:
    assert is_users_file(f"{OURS}_reports/jobs.py")
    assert is_users_file(f"{OURS.parent}/jobs.py")


@pytest.mark.parametrize(
    "file",
    [
        json.__file__,
        np.__file__,
        f"{OURS}/flow/function_shipping.py",
        "/home/me/.local/lib/python3.11/site-packages/toolz/core.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
    ],
)
def test_installed_files_are_not_the_users(file: str) -> None:
    assert not is_users_file(file)
