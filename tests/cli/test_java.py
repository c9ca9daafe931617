from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.java import JavaNotFoundError, find_java


def _java(folder: Path, version: str, status: int = 0) -> Path:
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ["17.0.9", "21", "25-ea"])
def test_a_new_enough_java_on_the_path_is_used(tmp_path: Path, version: str) -> None:
    java = _java(tmp_path / "bin", version)

    assert find_java({"PATH": str(tmp_path / "bin")}) == java


def test_java_home_is_preferred_to_the_path(tmp_path: Path) -> None:
    java = _java(tmp_path / "home" / "bin", "17.0.1")
    _java(tmp_path / "bin", "21")
    places = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}

    assert find_java(places) == java


def test_a_missing_java_is_an_error_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"PATH": str(tmp_path)})

    assert "none was found" in str(caught.value)
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_an_old_java_is_named(tmp_path: Path, version: str) -> None:
    java = _java(tmp_path / "bin", version)

    with pytest.raises(JavaNotFoundError, match=f"{java} is Java (8|11)"):
        find_java({"PATH": str(tmp_path / "bin")})


def test_a_java_that_fails_is_named(tmp_path: Path) -> None:
    _java(tmp_path / "bin", "17", status=1)

    with pytest.raises(JavaNotFoundError, match="does not run"):
        find_java({"PATH": str(tmp_path / "bin")})


def test_a_java_home_without_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match="has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})
