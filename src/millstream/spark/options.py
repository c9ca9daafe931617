"""The options of a run: what users may pass, and what is checked about it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar, cast

from pyspark.sql import SparkSession

from millstream.checkpoints.evolution import Changes
from millstream.coordinator.claim import Recovery
from millstream.coordinator.journal import CheckpointResult
from millstream.elastic.built_in import policy_of
from millstream.elastic.cooldown import Cooldown
from millstream.elastic.policy import Policy
from millstream.errors import ConfigError
from millstream.flow.workflow import Workflow
from millstream.node.durability.write_queue import WhenFull
from millstream.node.machine import Durability
from millstream.spark.dashboard_option import check_dashboard
from millstream.spark.node_launch import ZoneFunction
from millstream.stores.sizes import byte_size
from millstream.wire.hosts import check_host
from millstream.wire.tls import check_available

P = ParamSpec("P")
R = TypeVar("R")
_SHORTEST = timedelta(seconds=0.1)
_COUNTS = (
    ("nodes", 1, 4096),
    ("min_nodes", 1, 4096),
    ("max_nodes", 1, 4096),
    ("standby", 0, 4096),
    ("partitions", 1, 65536),
    ("overlap", 0, 1),
    ("slots", 1, 65536),
    ("replicas", 0, 16),
    ("retain", 1, 100_000),
    ("checkpoint_changes", 1, 2**62),
    ("restore_epoch", 0, 2**62),
)
_CHOICES = (
    ("durability", ("epoch", "interval")),
    ("recovery", ("eager", "lazy")),
    ("when_full", ("block", "replace")),
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run, with their defaults, checked."""

    checkpoint: str | os.PathLike[str] | None = None
    store: str | None = None
    restore_epoch: int | None = None
    recovery: Recovery = "eager"
    changes: Changes = field(default_factory=Changes)
    retain: int = 100
    durability: Durability = "epoch"
    checkpoint_every: timedelta = timedelta(seconds=2)
    checkpoint_changes: int | None = None
    when_full: WhenFull = "block"
    on_checkpoint: Callable[[CheckpointResult], None] | None = None
    nodes: int | None = None
    standby: int = 0
    replace_after: timedelta | None = timedelta(seconds=5)
    master: str | None = None
    partitions: int | None = None
    overlap: int = 1
    slots: int = 4096
    replicas: int = 1
    policy: str | Policy = "manual"
    min_nodes: int = 1
    max_nodes: int | None = None
    cooldown: Cooldown = field(default_factory=Cooldown)
    dry_run: bool = False
    memory_limit: int | str | None = None
    node_timeout: timedelta = timedelta(seconds=10)
    zone: ZoneFunction | None = None
    every: timedelta = timedelta(0)
    listen: str | None = None
    encrypt: bool | None = None
    progress: bool | None = None
    dashboard: bool | str | None = None
    spark: SparkSession | None = None

    def __post_init__(self) -> None:
        self._check_texts()
        self._check_counts()
        self._check_choices()
        self._check_lengths()
        if self.nodes is not None and self.nodes > self.slots:
            raise ConfigError(f"nodes must be at most slots ({self.slots}), got {self.nodes}")
        self._check_policy()
        self._check_listen()
        check_dashboard(self.dashboard)
        if self.zone is not None and not callable(self.zone):
            raise ConfigError(
                "zone must be a function of an executor's host and id that returns its fault zone, "
                f"got {self.zone!r}"
            )
        self._check_checkpoint()
        self._check_memory_limit()

    def _check_policy(self) -> None:
        policy_of(self.policy)
        if self.dry_run not in (True, False):
            raise ConfigError(f"dry_run must be True or False, got {self.dry_run!r}")
        if not isinstance(self.cooldown, Cooldown):
            raise ConfigError(f"cooldown must be an ms.Cooldown(...), got {self.cooldown!r}")
        if self.nodes is not None and self.nodes < self.min_nodes:
            raise ConfigError(
                f"min_nodes must be at most nodes ({self.nodes}), got {self.min_nodes}"
            )
        if self.max_nodes is not None and self.max_nodes < max(self.min_nodes, self.nodes or 1):
            raise ConfigError(
                f"max_nodes must be at least min_nodes ({self.min_nodes}) and nodes, "
                f"got {self.max_nodes}"
            )

    @property
    def encrypted(self) -> bool:
        """Whether connections between hosts are encrypted."""
        return self.listen is not None and self.encrypt is not False

    def _check_listen(self) -> None:
        if self.encrypt not in (None, True, False):
            raise ConfigError(f"encrypt must be True, False or None, got {self.encrypt!r}")
        if self.listen is not None:
            check_host(self.listen)
        elif self.encrypt:
            raise ConfigError(
                "encrypt=True needs listen=: without it, nothing listens on the network, and all "
                "calls go through Unix sockets of this host"
            )
        if self.encrypted:
            check_available()

    @property
    def memory_bytes(self) -> int | None:
        """What the keys of a node may take in memory."""
        return None if self.memory_limit is None else byte_size(self.memory_limit, "memory_limit")

    def _check_memory_limit(self) -> None:
        if self.memory_bytes is not None and importlib.util.find_spec("rocksdict") is None:
            raise ConfigError(
                "memory_limit needs the package rocksdict: pip install 'millstream[rocksdb]'"
            )

    def _check_texts(self) -> None:
        folder = self.checkpoint
        if isinstance(folder, os.PathLike):
            folder = os.fspath(folder)
        if folder is not None and not (isinstance(folder, str) and folder):
            raise ConfigError(f"checkpoint must be the path of a folder, got {self.checkpoint!r}")
        for name, what in (("store", "a store"), ("master", "a Spark master")):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text):
                raise ConfigError(f"{name} must be the URL of {what}, got {text!r}")
        if self.progress not in (None, True, False):
            raise ConfigError(f"progress must be True, False or None, got {self.progress!r}")

    def _check_counts(self) -> None:
        optional = {option.name for option in fields(self) if option.default is None}
        for name, low, high in _COUNTS:
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(f"{name} must be an integer from {low} to {high}, got {value!r}")

    def _check_choices(self) -> None:
        for name, allowed in _CHOICES:
            if getattr(self, name) not in allowed:
                listed = " or ".join(map(repr, allowed))
                raise ConfigError(f"{name} must be {listed}, got {getattr(self, name)!r}")

    def _check_lengths(self) -> None:
        if not isinstance(self.every, timedelta) or self.every < timedelta(0):
            raise ConfigError(f"every must be a timedelta of 0 or more, got {self.every!r}")
        for name in ("checkpoint_every", "node_timeout", "replace_after"):
            length = getattr(self, name)
            if length is None and name == "replace_after":
                continue
            if not isinstance(length, timedelta) or length < _SHORTEST:
                raise ConfigError(f"{name} must be a timedelta of 0.1 s or more, got {length!r}")

    def _check_checkpoint(self) -> None:
        if not isinstance(self.changes, Changes):
            raise ConfigError(f"changes must come from ms.changes(...), got {self.changes!r}")
        if self.on_checkpoint is not None and not callable(self.on_checkpoint):
            raise ConfigError(f"on_checkpoint must be a function, got {self.on_checkpoint!r}")
        if self.when_full == "replace" and self.durability != "interval":
            raise ConfigError(
                "when_full='replace' needs durability='interval': with 'epoch' every epoch is in "
                "the store before it commits, and none can replace another"
            )
        if self.checkpoint is None:
            for name in ("store", "restore_epoch"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name} needs checkpoint=, the folder with the offsets to resume from"
                    )


def with_options(
    make: Callable[P, RunConfig],
) -> Callable[[Callable[[Workflow, RunConfig], R]], Callable[Concatenate[Workflow, P], R]]:
    """Let a function of a workflow and its options take the options by name.

    They are written down once, in ``RunConfig``: type checkers and ``help`` take them from there.
    """
    options = list(inspect.signature(make).parameters.values())
    names = [option.name for option in options]

    def decorate(
        function: Callable[[Workflow, RunConfig], R],
    ) -> Callable[Concatenate[Workflow, P], R]:
        @functools.wraps(function)
        def called(workflow: Workflow, *args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in names:
                    listed = ", ".join(sorted(names))
                    raise ConfigError(f"there is no option {name!r}; the options are {listed}")
            return function(workflow, make(*args, **given))

        own = inspect.signature(function)
        first = next(iter(own.parameters.values()))
        called.__signature__ = own.replace(parameters=[first, *options])  # type: ignore[attr-defined]
        return cast(Callable[Concatenate[Workflow, P], R], called)

    return decorate
