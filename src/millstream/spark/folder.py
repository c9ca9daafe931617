"""A folder on any file system that Spark can reach, through Hadoop's own client in the JVM."""

from __future__ import annotations

import os
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Folder:
    """A folder on any file system that Spark knows. Names are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._path_class = jvm.org.apache.hadoop.fs.Path
        path = self._path_class(root)
        self._fs = path.getFileSystem(conf)
        self._text = self._fs.makeQualified(path).toString()
        # Local, and nobody has chosen an implementation of their own.
        self.is_plain_local: bool = (
            self._fs.getUri().getScheme() == "file" and conf.get("fs.file.impl") is None
        )

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
        self._fs.mkdirs(self._path(name))

    def make_local(self, name: str) -> None:
        # Without Hadoop's native library every new folder forks a chmod, about 7 ms each.
        os.makedirs(self._path(name).toUri().getPath(), exist_ok=True)

    def names(self, name: str) -> list[str]:
        path = self._path(name)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def _path(self, name: str) -> Any:
        return self._path_class(self.text(name))
