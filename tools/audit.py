"""Looks up the pinned packages in the database of known vulnerabilities, with pip-audit.

Fails on a vulnerability, and on an audit that fails. Without the network there is nothing to look
up: this is reported, and the check goes on. It takes a minute at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
AUDIT = (sys.executable, "-m", "pip_audit")
SECONDS = 60.0
# Of the database that is asked for each package; the other one skips, without an error, whatever
# the index at hand does not describe.
_OPTIONS = (
    *("--requirement", str(PINS), "--no-deps", "--disable-pip"),
    *("--vulnerability-service", "osv", "--timeout", "5"),
    *("--format", "json", "--progress-spinner", "off"),
)
_UNREACHABLE = (
    "requests.exceptions.",
    "pip_audit._service.interface.ConnectionError",
    "pip_audit._service.interface.ServiceError",
)


def main(audit: Sequence[str] = AUDIT, *, seconds: float = SECONDS) -> int:
    """Audit the pins; return the exit code."""
    try:
        done = subprocess.run(
            [*audit, *_OPTIONS], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return _not_audited(f"there was no answer within {seconds:.0f} s")
    found = _report(done.stdout)
    if found is None:
        if any(sign in done.stderr for sign in _UNREACHABLE):
            return _not_audited("the database of vulnerabilities cannot be reached")
        print(f"audit: pip-audit failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return 1
    vulnerable = [package for package in found if package.get("vulns")]
    for package in vulnerable:
        for known in package["vulns"]:
            fixed = ", ".join(known.get("fix_versions", [])) or "no version yet"
            print(
                f"audit: {package['name']} {package['version']}: {known['id']}; fixed in {fixed}",
                file=sys.stderr,
            )
    if vulnerable:
        return 1
    if done.returncode != 0:
        print(f"audit: pip-audit failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return 1
    skipped = [package["name"] for package in found if "skip_reason" in package]
    if skipped:
        return _not_audited(f"{len(skipped)} of {len(found)} packages are not known there")
    print(f"audit: no known vulnerability in {len(found)} packages")
    return 0


def _report(printed: str) -> list[dict[str, Any]] | None:
    """What pip-audit found of each package; None if it printed no report."""
    try:
        packages: list[dict[str, Any]] = json.loads(printed)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return None
    return packages


def _not_audited(why: str) -> int:
    print(f"audit: not audited: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
