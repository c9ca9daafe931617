"""The public names, and what importing them costs."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms

ERRORS = Path(__file__).parent.parent / "docs" / "errors.md"

INTERNAL = {
    "ApiUnreachableError": "printed by the command line",
    "BackgroundTaskError": "reported by a node to the coordinator, which retries",
    "BadManifestError": "becomes a Damage, and so CheckpointDamagedError",
    "BadStoreKeyError": "the keys of stores are ours",
    "BrokenFeedError": "the feeder retries",
    "CheckpointInUseError": "printed by the command line",
    "CompactionUnsupportedError": "printed by the command line",
    "ContinuationGoneError": "an answer of the HTTP API",
    "EntryReplacedError": "the coordinator asks again",
    "EpochOrderError": "a defect",
    "FeedRefusedError": "the feeder retries",
    "FencedError": "ends a node that is not part of the run",
    "JavaNotFoundError": "printed by the command line",
    "MissingReceiptsError": "the epoch runs again",
    "NoApiError": "printed by the command line",
    "NoStoreError": "a defect",
    "NoSourceCheckoutError": "printed by the command line",
    "NoSuchRunError": "printed by the command line",
    "NotReadyError": "the coordinator asks again",
    "RebasedError": "the coordinator asks again",
    "RecutError": "the epoch runs again",
    "RefusedError": "printed by the command line",
    "RegistryUnusableError": "logged by a run, printed by the command line",
    "RingError": "a defect",
    "SeveralRunsError": "printed by the command line",
    "SlotsNotHeldError": "the coordinator asks the owner",
    "StaleTaskError": "ends a task of an epoch that is over",
    "UnknownJobError": "a defect",
    "UnknownRequestError": "a defect",
    "UnreachableError": "the caller retries, or reports the node",
    "ValueTypeError": "becomes RecordError",
}


def test_every_public_name_is_there() -> None:
    assert all(getattr(ms, name) is not None for name in ms.__all__)


def test_every_public_error_has_the_one_root() -> None:
    errors = [getattr(ms, name) for name in ms.__all__ if isinstance(getattr(ms, name), type)]
    errors = [error for error in errors if issubclass(error, BaseException)]

    assert len(errors) >= 10
    assert all(issubclass(error, ms.MillstreamError) for error in errors)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ms.nonsense


def test_importing_the_package_loads_no_spark() -> None:
    code = "import sys, millstream; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def all_errors() -> Iterator[type[ms.MillstreamError]]:
    for module in pkgutil.walk_packages(ms.__path__, "millstream."):
        if not module.name.endswith("__main__") and not module.name.startswith("millstream.sim"):
            importlib.import_module(module.name)
    waiting = [ms.MillstreamError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        if error.__module__.startswith("millstream.") and ".sim." not in error.__module__:
            yield error


def test_every_error_is_exported_or_internal_for_a_reason() -> None:
    names = {error.__name__ for error in all_errors()}

    assert {name for name in names if name not in ms.__all__} == INTERNAL.keys()


def test_every_exported_error_is_documented_with_cause_and_cure() -> None:
    exported = {error.__name__ for error in all_errors()}.intersection(ms.__all__)
    rows = re.findall(r"^\| `ms\.(\w+)`[^|]*\|([^|]+)\|([^|]+)\|$", ERRORS.read_text(), re.M)

    assert sorted(name for name, _, _ in rows) == sorted(exported - {"MillstreamError"})
    assert all(cause.strip() and cure.strip() for _, cause, cure in rows)
