"""Lets Spark write a query's logs to a local folder without a process for every file.

Hadoop sets the permissions of each local file, and of its checksum, by running ``chmod``, unless
its native library is installed: six processes for the three log files of an epoch. The two classes
below set them by a system call, and are Spark's and Hadoop's own in everything else. They are
compiled in the driver, by the compiler of Spark's generated code.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

log = logging.getLogger("millstream")

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_SPARKS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_OURS = "millstream.LocalLogs"
_SOURCE = """
package millstream;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission mode) throws IOException {
        if (mode.toShort() > 0777) {
            super.setPermission(path, mode);
        } else {
            String text = mode.getUserAction().SYMBOL + mode.getGroupAction().SYMBOL
                + mode.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(
                pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
        }
    }
}

public class LocalLogs extends %s {
    private FileSystem files;

    public LocalLogs(Path path, Configuration conf) throws IOException {
        super(path, conf);
        FileSystem found = super.fs();
        if (found instanceof LocalFileSystem
                && ((LocalFileSystem) found).getRaw().getClass() == RawLocalFileSystem.class) {
            files = new LocalFileSystem(new LocalFiles());
            files.initialize(found.getUri(), conf);
        }
    }

    public FileSystem fs() {
        return files == null ? super.fs() : files;
    }
}
"""


@contextmanager
def quick_local_logs(spark: SparkSession) -> Iterator[None]:
    """Have a query that starts meanwhile write its logs by our classes, in the place of Spark's."""
    if spark.conf.get(FILE_MANAGER, None) != _SPARKS or not _is_loaded(spark):
        yield
        return
    spark.conf.set(FILE_MANAGER, _OURS)
    try:
        yield
    finally:
        spark.conf.set(FILE_MANAGER, _SPARKS)


def _is_loaded(spark: SparkSession) -> bool:
    """Load the classes into the driver's JVM, unless they are; whether they are there."""
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loader.loadClass(_OURS)
        except Py4JError:
            _load(jvm, loader)
    except (Py4JError, TypeError) as problem:
        log.info("Spark's own classes write its logs: %s", problem)
        return False
    return True


def _load(jvm: Any, loader: Any) -> None:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE % _SPARKS)
    with tempfile.TemporaryDirectory(prefix="millstream-classes-") as folder:
        for name, code in compiler.getBytecodes().items():
            file = Path(folder, *name.split(".")).with_suffix(".class")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(code)
        # Spark's loader, not one of ours: whatever thread Spark starts must find them.
        loader.addURL(jvm.java.io.File(folder).toURI().toURL())
        for name in compiler.getBytecodes():
            loader.loadClass(name)
