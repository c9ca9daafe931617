"""Millstream beside its peers: one command, one machine, every answer checked.

``--json FILE`` keeps the results, and those of parts that were taken before; the machine and the
versions are beside it. ``--against FILE`` fails if a ratio is worse than in that file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

from benchmarks.compare_sizes import FULL, QUICK, SMOKE
from benchmarks.comparison import PARTS, QUICK_PARTS, Arena
from benchmarks.field import Field
from benchmarks.goals import merged, note_goals
from benchmarks.harness import (
    Result,
    asked_of,
    environment,
    note,
    parser_for,
    print_table,
    write_results,
)
from benchmarks.regressions import regressions

TIMEOUT = 900.0


def main() -> None:
    # Also when it is ended from outside, the engines' processes are.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    asked = _asked()
    known = _known(asked.against)
    size = SMOKE if asked.smoke else QUICK if asked.quick else FULL
    parts = asked.part or (PARTS if not asked.quick else QUICK_PARTS)
    taken: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder,
        Field(Path(folder), timeout=TIMEOUT) as field,
    ):
        for part in parts:
            note(f"part {part}")
            taken += PARTS[part](Arena(field, size, Path(folder)))
            if asked.json is not None:
                # After every part: hours of work should not depend on the last one.
                about = {**environment(None), "peers": field.versions, "quick": asked.quick}
                about["versions"]["java"] = _java_version()
                write_results(asked.json, merged(asked.json, taken), about)
    print_table(taken)
    note_goals(taken)
    worse = regressions(known, [asdict(result) for result in taken], all_of_them=not asked.part)
    if worse:
        raise SystemExit("worse than before:\n  " + "\n  ".join(worse))


def _asked() -> argparse.Namespace:
    parser = parser_for((__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="hardly any data: does it run?")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this; repeatable"
    )
    parser.add_argument("--against", metavar="FILE", type=Path, help="fail if worse than these")
    return asked_of(parser)


def _java_version() -> str:
    """The Java that Spark and Flink run in."""
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    said = subprocess.run(
        [java if java.is_file() else "java", "-version"], capture_output=True, text=True
    )
    return said.stderr.partition('"')[2].partition('"')[0]


def _known(file: Path | None) -> list[dict[str, object]]:
    if file is None:
        return []
    if not file.exists():
        raise SystemExit(f"there are no results to compare with: make bench ARGS='--json {file}'")
    known: list[dict[str, object]] = json.loads(file.read_text())
    return known


if __name__ == "__main__":
    main()
