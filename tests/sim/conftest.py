"""What the searches of simulated runs have found is told at the end of the tests."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = [
        f"  {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "found"
    ]
    if found:
        terminalreporter.section("promises broken without a protection")
        terminalreporter.write_line("\n".join(sorted(found)))
