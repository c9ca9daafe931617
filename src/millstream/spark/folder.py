"""A folder on any file system that Spark can reach, through Hadoop's own client in the JVM.

A call into the JVM costs about a millisecond, so what is done for many small files is done by
Python itself where the folder is plainly local.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_COPIERS = 16  # an object store answers late, but many at once


class Folder:
    """A folder on any file system that Spark knows. Names are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._conf = conf
        self._file_util = jvm.org.apache.hadoop.fs.FileUtil
        self._path_class = jvm.org.apache.hadoop.fs.Path
        path = self._path_class(root)
        self._fs = path.getFileSystem(conf)
        qualified = self._fs.makeQualified(path)
        self._text = qualified.toString()
        self._local_root = str(qualified.toUri().getPath())
        # Local, and without an implementation that the user has configured.
        self.is_plain_local: bool = (
            self._fs.getUri().getScheme() == "file" and conf.get("fs.file.impl") is None
        )

    @property
    def local_path(self) -> str | None:
        """The path of the folder, if it is local."""
        return self._local_root if self.is_plain_local else None

    def text(self, name: str) -> str:
        return f"{self._text}/{name}" if name else self._text

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def is_file(self, name: str) -> bool:
        return self.exists(name) and bool(self._fs.getFileStatus(self._path(name)).isFile())

    def rename(self, source: str, target: str) -> bool:
        try:
            return bool(self._fs.rename(self._path(source), self._path(target)))
        except Py4JJavaError:
            # Some file systems answer false for a missing source, others raise.
            if self.exists(source):
                raise
            return False

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def make(self, name: str) -> None:
        if self.is_plain_local:
            self.make_local(name)
        else:
            self._fs.mkdirs(self._path(name))

    def make_local(self, name: str) -> None:
        # Without Hadoop's native library every new folder forks a chmod, about 7 ms each.
        os.makedirs(self.local(name), exist_ok=True)

    def read(self, name: str) -> str | None:
        """The text of a small file, or None if there is none."""
        if self.is_plain_local:
            try:
                with open(self.local(name), encoding="utf-8") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not self.exists(name):
            return None
        stream = self._fs.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def read_start(self, name: str, limit: int) -> bytes:
        """The first bytes of a file."""
        if self.is_plain_local:
            with open(self.local(name), "rb") as file:
                return file.read(limit)
        stream = self._fs.open(self._path(name))
        try:
            return bytes(stream.readNBytes(limit))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write and sync a small file."""
        if self.is_plain_local:
            with open(self.local(name), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            return
        stream = self._fs.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def copy(self, names: Iterable[str], source: str, target: str) -> None:
        """Copy files that are not written again from one folder in here to another.

        A file that was removed meanwhile is skipped.
        """
        pairs = [(f"{source}/{name}", f"{target}/{name}") for name in names]
        if self.is_plain_local:
            for folder in {os.path.dirname(target) for _, target in pairs}:
                self.make_local(folder)
            for pair in pairs:
                _link(*map(self.local, pair))
        else:
            with ThreadPoolExecutor(_COPIERS) as pool:
                list(pool.map(self._copy, pairs))

    def names(self, name: str) -> list[str]:
        if self.is_plain_local:
            try:
                return sorted(name for name in os.listdir(self.local(name)) if not _is_crc(name))
            except (FileNotFoundError, NotADirectoryError):
                return []
        path = self._path(name)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def _path(self, name: str) -> Any:
        return self._path_class(self.text(name))

    def local(self, name: str) -> str:
        """The path of a name, if the folder is local."""
        return os.path.join(self._local_root, name)

    def _copy(self, pair: tuple[str, str]) -> None:
        source, target = map(self._path, pair)
        try:
            self._file_util.copy(self._fs, source, self._fs, target, False, True, self._conf)
        except Py4JJavaError:
            if self._fs.exists(source):
                raise


def _link(source: str, target: str) -> None:
    # A hard link to a durable file costs nothing, and a crash cannot empty it.
    try:
        os.link(source, target)
    except FileNotFoundError:
        return
    except OSError:
        # The file system has no hard links.
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            return


def _is_crc(name: str) -> bool:
    """Whether a file is a checksum of Hadoop's, which its own listings hide."""
    return name.startswith(".") and name.endswith(".crc")
