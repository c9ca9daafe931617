"""The audit of the pinned packages, with programs in the place of pip-audit."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tools import audit

FINE = {"name": "fine", "version": "1", "vulns": []}
VULNERABLE = {
    "name": "bad",
    "version": "2",
    "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}, {"id": "CVE-2", "fix_versions": []}],
}
SKIPPED = {"name": "odd", "skip_reason": "not found"}


def program(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def reporting(*packages: dict[str, Any], status: int = 0) -> tuple[str, ...]:
    report = json.dumps({"dependencies": packages, "fixes": []})
    return program(f"import sys; print({report!r}); sys.exit({status})")


def raising(error: str, status: int = 1) -> tuple[str, ...]:
    return program(f"import sys; print({error!r}, file=sys.stderr); sys.exit({status})")


def test_packages_without_vulnerabilities_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(reporting(FINE)) == 0
    assert "no known vulnerability in 1 packages" in capsys.readouterr().out


@pytest.mark.parametrize("others", [(), (FINE,), (SKIPPED,)])
def test_a_vulnerability_fails_and_is_named_with_its_cure(
    others: tuple[dict[str, Any], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(reporting(*others, VULNERABLE, status=1)) == 1

    reported = capsys.readouterr().err
    assert "bad 2: CVE-1; fixed in 3" in reported
    assert "bad 2: CVE-2; fixed in no version yet" in reported


@pytest.mark.parametrize(
    "error",
    [
        "requests.exceptions.ConnectionError: Failed to resolve",
        "requests.exceptions.ReadTimeout: timed out",
        "pip_audit._service.interface.ServiceError: 503",
    ],
)
def test_without_the_database_it_says_so_and_passes(
    error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(raising(error)) == 0
    assert "not audited: the database" in capsys.readouterr().err


def test_an_audit_that_hangs_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(program("import time; time.sleep(600)"), seconds=0.5) == 0
    assert "not audited: there was no answer" in capsys.readouterr().err


def test_packages_that_the_database_does_not_know_do_not_count_as_audited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit.main(reporting(FINE, SKIPPED)) == 0

    reported = capsys.readouterr()
    assert "1 of 2 packages are not known there" in reported.err
    assert "no known vulnerability" not in reported.out


@pytest.mark.parametrize(
    "failing", [raising("ValueError: a defect"), raising("", 2), reporting(FINE, status=1)]
)
def test_an_audit_that_fails_for_another_reason_fails(failing: tuple[str, ...]) -> None:
    assert audit.main(failing) == 1
