"""The options of a run, and the errors for invalid ones."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.checkpoints.evolution import changes
from millstream.errors import ConfigError
from millstream.spark.options import RunConfig, with_options

SECOND = timedelta(seconds=1)
GOOD: dict[str, list[Any]] = {
    "checkpoint": [None, "folder", Path("folder"), "s3a://bucket/folder"],
    "store": [None, "redis://host", "log:///folder"],
    "restore_epoch": [None, 0, 7],
    "recovery": ["eager", "lazy"],
    "changes": [changes(), changes(added=["a"])],
    "retain": [1, 100_000],
    "durability": ["epoch", "interval"],
    "checkpoint_every": [timedelta(seconds=0.1), SECOND],
    "checkpoint_changes": [None, 1],
    "when_full": ["block", "replace"],
    "on_checkpoint": [None, print],
    "nodes": [None, 1, 4096],
    "dashboard": [None, True, False, "127.0.0.1:0", "localhost:8080"],
    "standby": [0, 3],
    "replace_after": [None, SECOND],
    "master": [None, "local[2]"],
    "partitions": [None, 1],
    "overlap": [0, 1],
    "slots": [4096, 65536],
    "replicas": [0, 16],
    "policy": ["ring", "bottleneck", "latency", "manual", ms.RingPolicy()],
    "min_nodes": [1, 4],
    "max_nodes": [None, 8],
    "cooldown": [ms.Cooldown(epochs=5)],
    "dry_run": [True, False],
    "memory_limit": [None, 10**6, "512MB"],
    "node_timeout": [SECOND],
    "zone": [None, lambda host, executor: host],
    "every": [timedelta(0), SECOND],
    "listen": [None, "host.example", "10.0.0.1", "[::1]"],
    "encrypt": [None, True, False],
    "progress": [None, True, False],
}
BAD: dict[str, list[Any]] = {
    "checkpoint": ["", 5, b"folder"],
    "store": ["", 5],
    "restore_epoch": [-1, 1.5, True, "3"],
    "recovery": ["fast", None],
    "changes": [None, {"added": ["a"]}],
    "retain": [0, -1, None, "3", 100_001],
    "durability": ["none", None],
    "checkpoint_every": [2, timedelta(0), None],
    "checkpoint_changes": [0, 1.5],
    "when_full": ["drop", None],
    "on_checkpoint": [5],
    "nodes": [0, "2", True, 4097],
    "dashboard": ["", "8080", "127.0.0.1:", "127.0.0.1:65536", 8080],
    "standby": [-1, None, 1.0],
    "replace_after": [5, timedelta(0)],
    "master": ["", 5],
    "partitions": [0, 1.0],
    "overlap": [-1, 2, None, True],
    "slots": [0, None, 65537],
    "replicas": [-1, 17, None],
    "policy": ["rings", None, 3],
    "min_nodes": [0, None],
    "max_nodes": [0, "8"],
    "cooldown": [None, 10],
    "dry_run": [None, "yes"],
    "memory_limit": ["lots", -1, 0, True],
    "node_timeout": [5, timedelta(0), None],
    "zone": ["zone"],
    "every": [5, timedelta(-1), None],
    "listen": ["0.0.0.0", "[::]", "::", "0", "", "host:80", 5],
    "encrypt": [5, "yes"],
    "progress": [5, "yes"],
}


@with_options(RunConfig)
def taken(workflow: ms.Workflow, config: RunConfig) -> RunConfig:
    return config


def made(**options: Any) -> RunConfig:
    return taken(ms.Workflow("any"), **options)


def test_every_option_has_a_default_and_is_tried_here() -> None:
    names = {option.name for option in fields(RunConfig)}

    assert names == {*GOOD, "spark"} == {*BAD, "spark"}
    assert made() == RunConfig()


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in GOOD.items() for v in vs])
def test_a_valid_option_is_accepted(name: str, value: Any) -> None:
    others = {"checkpoint": "folder", "durability": "interval", "listen": "host.example"}
    assert getattr(made(**{**others, name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_a_bad_option_is_rejected_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .*got"):
        made(**{"checkpoint": "folder", name: value})


def test_the_options_are_those_of_the_functions_that_take_them() -> None:
    names = [option.name for option in fields(RunConfig)]

    for function in (ms.run, ms.start):
        assert list(inspect.signature(function).parameters) == ["workflow", *names]


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no option 'node'; .* nodes, .* retain"):
        made(node=2)


@pytest.mark.parametrize("options", [{"store": "redis://host"}, {"restore_epoch": 0}])
def test_what_is_about_a_checkpoint_needs_one(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(ConfigError, match=f"{name} needs checkpoint="):
        made(**options)


def test_replacing_epochs_needs_durability_interval() -> None:
    with pytest.raises(ConfigError, match="when_full='replace' needs durability='interval'"):
        made(when_full="replace")
    assert made(when_full="replace", durability="interval").when_full == "replace"


def test_there_cannot_be_more_nodes_than_slots() -> None:
    with pytest.raises(ConfigError, match=r"nodes must be at most slots \(2\), got 3"):
        made(nodes=3, slots=2)


def test_a_limit_of_memory_is_read_as_bytes() -> None:
    assert made(memory_limit="1MB").memory_bytes == 2**20 and made().memory_bytes is None


def test_listening_encrypts_by_default() -> None:
    assert made(listen="host").encrypted and made(listen="host", encrypt=True).encrypted
    assert not made(listen="host", encrypt=False).encrypted
    assert not made().encrypted and not made(encrypt=False).encrypted
    with pytest.raises(ConfigError, match="encrypt=True needs listen="):
        made(encrypt=True)


def test_listening_without_the_extra_needs_encryption_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"pip install 'millstream\[tls\]'"):
        made(listen="host")
    assert made(listen="host", encrypt=False).listen == "host"
