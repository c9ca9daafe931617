"""Looking for Java before Spark does, whose own complaint is a stack trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from millstream.errors import MillstreamError

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaNotFoundError(MillstreamError):
    """There is no Java that Spark can run on."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return (
            f"Spark needs Java {OLDEST} or newer; {self.found}. Install it, for example with\n"
            "    Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless "
            "(or openjdk-21-jre-headless)\n"
            "    Fedora:          sudo dnf install java-21-openjdk-headless\n"
            "    macOS:           brew install openjdk@17\n"
            "or set JAVA_HOME to one that is already installed."
        )


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The java that Spark will start: of JAVA_HOME, or else the first on the PATH."""
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise JavaNotFoundError(f"JAVA_HOME is {home}, which has no bin/java")
    else:
        found = shutil.which("java", path=environment.get("PATH", os.defpath))
        if found is None:
            raise JavaNotFoundError("none was found on the PATH, and JAVA_HOME is not set")
        java = Path(found)
    major = _major(java)
    if major is None:
        raise JavaNotFoundError(f"{java} does not run")
    if major < OLDEST:
        raise JavaNotFoundError(f"{java} is Java {major}")
    return java


def _major(java: Path) -> int | None:
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    version = _VERSION.search(printed.stderr + printed.stdout)
    return int(version.group(1)) if version else None
