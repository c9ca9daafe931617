"""A plan as text: stages, jobs, shared work, and state with its lifetime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from millstream.flow.labels import (
    key_text,
    map_text,
    place_text,
    reduce_text,
    sink_text,
    source_text,
    step_text,
    timer_text,
)
from millstream.flow.plan import Plan
from millstream.flow.reducers import AggregateReducer, ArrowReducer, CombiningReducer, JoinReducer
from millstream.flow.scans import spark_readers
from millstream.flow.sources import FolderSource
from millstream.flow.time_origins import JobTiming, timings_of
from millstream.flow.vertices import (
    FusedVertex,
    JobVertex,
    SideVertex,
    SinkVertex,
    SourceVertex,
    UnionVertex,
)
from millstream.flow.windows import CountWindow, SessionWindow, TimeWindow, Windowing, length_text
from millstream.times import micros

_WIDE = 9


def explain(plan: Plan) -> str:
    """The plan as text."""
    explained = _Explained(plan)
    parts = [explained.head(), explained.sources()]
    parts += [explained.stage(level) for level in range(max(plan.levels) + 1)]
    parts += [explained.sinks(), explained.shared()]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Explained:
    """The parts of the text, each a list of lines."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._timings = {timing.job: timing for timing in timings_of(plan)}
        self._spark_readers = spark_readers(plan)
        unions = [at for at, _ in plan.of_kind(UnionVertex)]
        self._texts = [step_text(vertex) for vertex in plan.vertices]
        if len(unions) > 1:
            for number, at in enumerate(unions, 1):
                self._texts[at] = f"union {number}"

    def head(self) -> list[str]:
        plan = self._plan
        counts = [
            _count(len(plan.of_kind(SourceVertex)), "source"),
            _count(len(plan.jobs) + len(plan.of_kind(FusedVertex)), "job"),
            _count(len(plan.sinks), "sink"),
            _count(max(plan.levels[at] for at, _ in plan.jobs) if plan.jobs else 0, "shuffle"),
        ]
        return [f"workflow {plan.name}: {', '.join(counts)}"]

    def sources(self) -> list[str]:
        lines = ["sources"]
        for at, vertex in self._plan.of_kind(SourceVertex):
            timing = vertex.timing
            end = "ends" if vertex.source.bounded else "goes on"
            lines.append(f"  {vertex.name}: {source_text(vertex.source)}; {end}")
            if isinstance(vertex.source, FolderSource):
                reason = self._spark_readers.get(at)
                by = "Python tasks" if reason is None else f"Spark: {reason}"
                lines.append(f"    read by {by}")
            if self._timings:
                lines.append(
                    f"    lateness {length_text(timing.lateness)}, idle after "
                    f"{length_text(timing.idle)}, at most {length_text(timing.max_ahead)} ahead"
                )
        return lines

    def stage(self, level: int) -> list[str]:
        """The jobs of a stage, and the steps that run with them in one task."""
        lines = [f"stage {level}: {'shuffle and reduce' if level else 'read'}"]
        for at, job in self._plan.jobs:
            if self._plan.levels[at] == level:
                lines += [f"  job {job.name}"]
                lines += [f"    {line}" for line in self._job(at, job)]
        seen: set[int] = set()
        for at in self._heads(level):
            lines += [f"  {line}" for line in self._tree(at, level, seen)]
        return lines

    def _heads(self, level: int) -> Iterator[int]:
        """The vertices by which data enter a stage that reads them."""
        for at, vertex in enumerate(self._plan.vertices):
            enters = isinstance(vertex, SourceVertex | JobVertex | FusedVertex | SideVertex)
            inputs = [self._plan.levels[source] for source in self._plan.inputs[at]]
            enters = enters or any(source < level for source in inputs)
            if self._plan.levels[at] == level and enters and self._readers(at):
                yield at

    def _readers(self, at: int) -> list[int]:
        """The vertices that read the stream; side outputs are streams of their own."""
        found = self._plan.consumers[at]
        return [c for c in found if not isinstance(self._plan.vertices[c], SideVertex)]

    def _tree(self, at: int, level: int, seen: set[int]) -> list[str]:
        """The fused steps from a vertex on: one line while there is one reader."""
        vertex, line = self._plan.vertices[at], self._texts[at]
        if isinstance(vertex, SideVertex):
            line = f"{self._texts[self._plan.inputs[at][0]]}, {line}"
        while True:
            readers = self._readers(at)
            if at in seen and readers:
                return [f"{line} (above)"]
            seen.add(at)
            if len(readers) != 1 or self._leaves(at, level):
                break
            (at,) = readers
            line += f" → {self._texts[at]}"
        if self._leaves(at, level):
            return [line]
        below = [self._tree(reader, level, seen) for reader in readers]
        return [line, *(f"  {'→ ' if not n else '  '}{t}" for b in below for n, t in enumerate(b))]

    def _leaves(self, at: int, level: int) -> bool:
        """Whether a stream leaves this stage here."""
        vertex = self._plan.vertices[at]
        return isinstance(vertex, SinkVertex) or self._plan.levels[at] > level

    def _job(self, at: int, job: JobVertex) -> Iterator[str]:
        (source,) = self._plan.inputs[at]
        yield _line("reads", self._texts[source])
        if job.map is not None:
            yield _line("map", map_text(job.map) + self._map_shared(at))
        yield _line("key", key_text(job))
        if job.combine is not None:
            yield _line("combine", map_text(job.combine))
        yield _line("reduce", reduce_text(job.reducer))
        timing, windowing = self._timings.get(at), job.windowing
        if timing is not None and job.has_timers:
            yield _line("on_timer", timer_text(job.reducer))
            yield _line("time", self._time(job, timing))
        if timing is None or windowing is None:
            yield from _lines("state", [_kept(job), *_store(job)])
            return
        yield _line("window", str(windowing))
        yield _line("time", self._time(job, timing))
        if windowing.early is not None:
            yield _line("early", f"results of open windows every {length_text(windowing.early)}")
        if windowing.time_windows and not isinstance(job.reducer, JoinReducer):
            yield from _lines("panes", _panes(timing, windowing))
        yield from _lines("state", [_window_state(job, timing, windowing), *_store(job)])
        yield from _lines("fused", self._fused(at, windowing))
        sides = [c for c in self._plan.consumers[at] if c not in self._readers(at)]
        if sides:
            yield _line("sides", ", ".join(dict.fromkeys(self._texts[side] for side in sides)))

    def _map_shared(self, at: int) -> str:
        for group in self._plan.shared_maps:
            if at in group:
                others = [self._texts[other] for other in group if other != at]
                return f", run once for this and {_listed(others)}"
        return ""

    def _time(self, job: JobVertex, timing: JobTiming) -> str:
        if timing.by_arrival:
            return "of processing"
        time = f"event time{'' if job.time is None else f' in column {job.time}'}"
        origins = [f"{o.name} less {length_text(o.lateness)}" for o in timing.tracked]
        origins += [f"the watermark of {self._texts[o]}" for o in timing.inherited]
        return f"{time}; watermark: {'least of ' if len(origins) > 1 else ''}{_listed(origins)}"

    def _fused(self, at: int, windowing: Windowing) -> Iterator[str]:
        for window, readers in zip(windowing.windows, self._plan.readers.get(at, ()), strict=False):
            names = [getattr(self._plan.vertices[reader], "name", "") for reader in readers]
            yield f"{window}: for {_listed(names)}"

    def sinks(self) -> list[str]:
        lines = [f"  {sink.name}: {sink_text(sink.sink)}" for _, sink in self._plan.sinks]
        return ["sinks", *lines] if lines else []

    def shared(self) -> list[str]:
        """Steps and jobs that are shared."""
        lines = [
            f"  {self._texts[at]} ({place_text(self._plan.vertices[at].place)}) runs once, also "
            f"for {_listed([place_text(place) for place in places])}"
            for at, places in sorted(self._plan.merged.items())
        ]
        for at, fused in self._plan.of_kind(FusedVertex):
            host = self._texts[self._plan.inputs[at][0]]
            lines.append(f"  job {fused.name} is fused into {host}, which reduces for both")
        return ["shared", *lines] if lines else []


def _panes(timing: JobTiming, windowing: Windowing) -> Iterator[str]:
    count = len(windowing.windows)
    shared = f", shared by {count} windows" if count > 1 else ""
    yield f"of {length_text(windowing.pane)}{shared}"
    if not timing.foldable:
        yield "hold all values: a function reduces them, not partial results"
        return
    if windowing.by_two_stacks and windowing.panes is not False:
        yield f"two stacks: {', '.join(map(str, windowing.by_two_stacks))}"
    if windowing.panes is not None:
        yield "partial results, always" if windowing.panes else "hold all values, as panes=False"
    elif windowing.paying_rate is None:
        yield "partial results"
    else:
        yield f"panes pay above {windowing.paying_rate:.2g} values/s per key; measured rates decide"


def _kept(job: JobVertex) -> str:
    """The state of a job without windows."""
    match job.reducer:
        case AggregateReducer() | CombiningReducer():
            what = "a partial result per key"
        case ArrowReducer():
            what = "rows of its own"
        case _:
            what = "what the function keeps per key"
    return f"{what}, {_until_idle(job)}"


def _window_state(job: JobVertex, timing: JobTiming, windowing: Windowing) -> str:
    folds = job.reducer.merges and windowing.panes is not False
    what = "a partial result per key" if folds else "all values per key"
    lateness = max((origin.lateness for origin in timing.tracked), default=0)
    wait = f" and the lateness of {length_text(lateness)}" if lateness else ""
    if isinstance(job.reducer, JoinReducer):
        # Values without a match are matched again when they expire.
        longest = job.reducer.reach * (2 if job.reducer.kept_sides else 1)
        return f"all values of both sides, for {length_text(longest)}{wait}"
    match windowing.windows[0]:
        case TimeWindow():
            longest = max(window.size for window in windowing.time_windows)
            return f"{what} and pane, for {length_text(longest)}{wait}"
        case SessionWindow(gap):
            return f"{what} and open session, until {length_text(gap)} after it{wait}"
        case CountWindow(size):
            return f"the last {_count(size, 'value')} per key, {_until_idle(job)}"
        case _:
            return f"{what}, {_until_idle(job)}"


def _until_idle(job: JobVertex) -> str:
    if job.ttl is None:
        return "for ever"
    return f"until nothing came for {length_text(micros(job.ttl))}"


def _store(job: JobVertex) -> list[str]:
    return [] if job.durable else ["copied to peers, and not in the store"]


def _line(word: str, text: str) -> str:
    return f"{word:<{_WIDE}}{text}"


def _lines(word: str, texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield _line("" if number else word, text)


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
