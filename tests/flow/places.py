"""Lines of test code that errors should name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from millstream.errors import Place, WorkflowError


def next_line() -> Place:
    """The line below the one that calls this."""
    frame = sys._getframe(1)
    return Place(frame.f_code.co_filename, frame.f_lineno + 1)


def line_of_call(caught: pytest.ExceptionInfo[WorkflowError]) -> Place:
    """The line of the test on which the error came up."""
    frame = caught.traceback[0]
    return Place(str(frame.path), frame.lineno + 1)


def line_of(function: Callable[..., Any]) -> Place:
    """The line on which a function of the test is defined."""
    return Place(inspect.getfile(function), inspect.getsourcelines(function)[1])
