"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream as ms


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
