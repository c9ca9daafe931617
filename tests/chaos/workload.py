"""What a chaos run computes: seeded input cut into epochs, a workflow, and its batch answer.

Baskets of users: the first job keeps a history for every user, changed in place, with entries and
whole users that go again; the second adds up what the baskets of a group of users are worth. The
answer is computed here from the same lines without Millstream.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.flow.sources import Source

USERS = 60
GROUPS = 9
ITEMS = ("apple", "bread", "cheese", "dates")
FILES = 2
LINES = 50
RECENT = 4
JOBS = ("baskets", "worth")
LOAD = "load"
_OFTEN = 2_000

Rows = dict[int, list[tuple[Any, ...]]]
"""The rows of a sink, in order, by epoch."""


def lines_of(seed: int, epoch: int) -> list[list[str]]:
    """The input of an epoch: some files of lines ``number user kind item amount``."""
    dice = random.Random(f"{seed} {epoch}")
    files = []
    for file in range(FILES):
        lines = []
        for at in range(LINES):
            number = (epoch * FILES + file) * LINES + at
            user = f"u{min(dice.randrange(USERS), dice.randrange(USERS))}"
            kind = dice.choices(("buy", "return", "leave"), (75, 20, 5))[0]
            lines.append(f"{number} {user} {kind} {dice.choice(ITEMS)} {dice.randint(1, 50)}")
        files.append(lines)
    return files


class Input:
    """A folder that the run follows; an epoch's files appear in it at once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._making, self._ready = folder / "making", folder / "ready"
        self._making.mkdir()
        self._ready.mkdir()
        self._seed = seed
        self.epochs = 0

    @property
    def glob(self) -> str:
        return f"{self._ready}/*"

    def add(self) -> None:
        """Give the run one epoch more."""
        made = self._making / f"{self.epochs:06d}"
        made.mkdir()
        for number, lines in enumerate(lines_of(self._seed, self.epochs)):
            file = made / f"{number}.txt"
            file.write_text("\n".join(lines) + "\n")
            # Spark reads in the order of these times; far apart, so that no two are equal.
            moment = 1_000_000_000 + 60 * self.epochs + number
            os.utime(file, (moment, moment))
        made.rename(self._ready / made.name)
        self.epochs += 1


# -- the workflow ----------------------------------------------------------------------------

Event = tuple[int, str, str, int]


def read(line: str) -> Iterator[tuple[str, Event]]:
    number, user, kind, item, amount = line.split()
    yield user, (int(number), kind, item, int(amount))


def follow(user: str, events: list[Event], state: Any) -> Iterator[tuple[str, int]]:
    """Keep a user's basket; tell by how much its worth changed."""
    change = 0
    for number, kind, item, amount in sorted(events):
        if kind == "leave":
            change -= sum(state.get("basket", {}).values())
            state.clear()
            continue
        state["events"] = state.get("events", 0) + 1
        if "basket" not in state:
            state["basket"], state["recent"] = {}, []
        basket, recent = state["basket"], state["recent"]  # changed in place, never written back
        if kind == "buy":
            basket[item] = basket.get(item, 0) + amount
            recent.append(number)
            del recent[:-RECENT]
            state[f"last {item}"] = number
            change += amount
        elif f"last {item}" in state:
            change -= basket.pop(item)
            del state[f"last {item}"]
    yield user, change


def by_group(pair: tuple[str, int]) -> Iterator[tuple[int, int]]:
    user, change = pair
    yield group_of(user), change


def group_of(user: str) -> int:
    return int(user[1:]) % GROUPS


def add_up(group: int, changes: list[int], state: Any) -> Iterator[tuple[int, int]]:
    state["worth"] = state.get("worth", 0) + sum(changes)
    state["changes"] = state.get("changes", 0) + len(changes)
    yield group, state["worth"]


def keys_of(number: int, keys: int) -> Iterator[int]:
    """The keys of the job that is only load: all of them in the first epoch, then a few a line."""
    first = FILES * LINES
    if number < first:
        yield from range(number * keys // first, (number + 1) * keys // first)
    else:
        some = max(1, keys // _OFTEN)
        start = number * 7919 * some % keys
        yield from (key % keys for key in range(start, start + some))


def tally(key: int, ones: list[int], state: Any) -> None:
    state["n"] = state.get("n", 0) + len(ones)


@dataclass(frozen=True)
class Shape:
    """What differs between the workflows of two seeds: each takes another way through the code.

    ``builtin`` adds up with a built-in aggregate in columns; ``two_sinks`` makes the sinks read
    the epoch's blocks from Spark's cache. ``windows`` is for other jobs (``windowed.py``).
    """

    builtin: bool
    two_sinks: bool
    windows: bool = False

    @classmethod
    def of(cls, seed: int) -> Shape:
        return cls(builtin=seed % 2 == 1, two_sinks=seed % 4 >= 2)

    def __str__(self) -> str:
        total = "ms.sum" if self.builtin else "reducer"
        sinks = (3 if self.windows else 2) if self.two_sinks else 1
        return f"{'windows, ' if self.windows else ''}{total}, {sinks} sinks"


def workflow(source: Input, folder: Path, shape: Shape, keys: int = 0) -> ms.Workflow:
    """The workflow over a folder that it follows; with ``keys``, and a job that is only load."""
    flow = ms.Workflow("chaos")
    lines = flow.source("lines", ms.read.text(source.glob, follow=True, max_files_per_epoch=FILES))
    if keys:

        def touch(line: str) -> Iterator[tuple[int, int]]:
            for key in keys_of(int(line.split()[0]), keys):
                yield key, 1

        lines.map_reduce(LOAD, map=touch, reduce=ms.sum() if shape.builtin else tally)
    return _with_jobs(flow, lines, folder, shape)


def bounded_source(glob: str, recording: list[dict[str, str]]) -> Source:
    """So many epochs: a recording, if there is one, or else files."""
    if recording:
        return ms.read.replay(recording, rows_per_epoch=FILES * LINES)
    return ms.read.text(glob, max_files_per_epoch=FILES)


def bounded_workflow(source: Source, folder: Path, shape: Shape) -> ms.Workflow:
    """The workflow over so many epochs."""
    flow = ms.Workflow("chaos")
    return _with_jobs(flow, flow.source("lines", source), folder, shape)


def recorded(seed: int, epochs: int) -> list[dict[str, str]]:
    """The input as rows."""
    files = (file for epoch in range(epochs) for file in lines_of(seed, epoch))
    return [{"line": line} for file in files for line in file]


def _with_jobs(flow: ms.Workflow, lines: ms.Stream, folder: Path, shape: Shape) -> ms.Workflow:
    changes = lines.map_reduce("baskets", map=read, reduce=follow)
    worth = changes.map_reduce("worth", map=by_group, reduce=ms.sum() if shape.builtin else add_up)
    worth.sink("totals", ms.write.parquet(folder / "totals"))
    if shape.two_sinks:
        changes.sink("changes", ms.write.parquet(folder / "changes"))
    return flow


# -- the batch answer ------------------------------------------------------------------------


@dataclass
class Answer:
    """What a run must have come to, or has: state by job and rows by sink."""

    state: dict[str, dict[Any, Any]] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)


def answer(seed: int, epochs: int, shape: Shape, keys: int = 0) -> Answer:
    """The batch answer for the first epochs of a seed's input."""
    users: dict[str, dict[str, Any]] = {}
    worth: Counter[int] = Counter()
    counted: Counter[int] = Counter()
    changes_by_epoch: Rows = {}
    worth_by_epoch: Rows = {}
    for epoch in range(epochs):
        lines = sorted(
            (line.split() for file in lines_of(seed, epoch) for line in file),
            key=lambda words: int(words[0]),
        )
        before = {user: _worth_of(users.get(user)) for _, user, *_ in lines}
        for number, user, kind, item, amount in lines:
            _apply(users, user, int(number), kind, item, int(amount))
        changed = {user: _worth_of(users.get(user)) - old for user, old in before.items()}
        for user, change in changed.items():
            worth[group_of(user)] += change
            counted[group_of(user)] += 1
        groups = sorted({group_of(user) for user in changed})
        changes_by_epoch[epoch] = sorted(changed.items())
        worth_by_epoch[epoch] = [(group, worth[group]) for group in groups]
    totals: dict[Any, Any] = {
        group: worth[group] if shape.builtin else {"worth": worth[group], "changes": counted[group]}
        for group in counted
    }
    found = Answer({"baskets": dict(users), "worth": totals}, {"totals": worth_by_epoch})
    if shape.two_sinks:
        found.rows["changes"] = changes_by_epoch
    if keys:
        touched = Counter(
            key for number in range(epochs * FILES * LINES) for key in keys_of(number, keys)
        )
        found.state[LOAD] = {k: n if shape.builtin else {"n": n} for k, n in touched.items()}
    return found


def _worth_of(entries: dict[str, Any] | None) -> int:
    return sum(entries["basket"].values()) if entries else 0


def _apply(
    users: dict[str, dict[str, Any]], user: str, number: int, kind: str, item: str, amount: int
) -> None:
    if kind == "leave":
        users.pop(user, None)
        return
    entries = users.setdefault(user, {"events": 0, "basket": {}, "recent": []})
    entries["events"] += 1
    if kind == "buy":
        entries["basket"][item] = entries["basket"].get(item, 0) + amount
        entries["recent"] = [*entries["recent"], number][-RECENT:]
        entries[f"last {item}"] = number
    else:
        entries["basket"].pop(item, None)
        entries.pop(f"last {item}", None)


def differences(found: Answer, expected: Answer) -> list[str]:
    """What is missing, too much or different, a line each."""
    lines: list[str] = []
    for job, wanted in expected.state.items():
        lines += _compare(f"state of {job!r}, key", found.state.get(job, {}), wanted)
    for sink, rows in expected.rows.items():
        lines += _compare(f"rows of {sink!r}, epoch", found.rows.get(sink, {}), rows)
    return lines


def _compare(where: str, found: dict[Any, Any], wanted: dict[Any, Any]) -> Iterator[str]:
    for key in sorted(found.keys() | wanted.keys()):
        if key not in found:
            yield f"{where} {key!r}: missing, expected {wanted[key]!r}"
        elif key not in wanted:
            yield f"{where} {key!r}: {found[key]!r}, expected nothing"
        elif found[key] != wanted[key]:
            yield f"{where} {key!r}: {found[key]!r}, expected {wanted[key]!r}"
