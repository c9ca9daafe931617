"""The log of Spark for sessions that we create: a file in place of the terminal.

One failing function makes Spark log its Python workers' errors, its own stack traces and those of
the query, hundreds of lines before the one message that matters. In a session of ours, what Spark
would print on the terminal goes to a file of bounded size, which an error of the run names; it is
removed if nothing has failed. Appenders of the user's own configuration stay, and sessions of
users are never touched. Executors in their own processes log where the cluster configures.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_PATTERN = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex"
_NAME = "millstream"
_LARGEST = "10MB"  # of the file, and of the one before it


class SparkLog:
    """Where the driver's Spark logs to."""

    def __init__(self, spark: SparkSession) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-spark-"))
        self._jvm: Any = spark._jvm
        self._retained = False
        self._replaced: list[Any] = []
        self._appender: Any = None
        # Without log4j 2, or without access to it, Spark logs as before.
        with contextlib.suppress(Exception):
            self._redirect()

    @property
    def path(self) -> Path:
        return self._folder / "spark.log"

    @property
    def is_written(self) -> bool:
        """Whether Spark logs to the file."""
        return self._appender is not None

    def retain(self) -> Path:
        """Retain the file when the session ends: an error names it."""
        self._retained = True
        return self.path

    def close(self) -> None:
        """Make Spark log to the terminal again: its JVM may serve other sessions after ours."""
        with contextlib.suppress(Exception):
            self._restore()
        if not self._retained:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _redirect(self) -> None:
        context, root = self._logger()
        consoles = [
            appender
            for appender in root.getAppenders().values()
            if appender.getClass().getSimpleName() == "ConsoleAppender"
        ]
        self._appender = self._file_appender(context)
        root.addAppender(self._appender, None, None)
        for appender in consoles:
            root.removeAppender(appender.getName())
        self._replaced = consoles
        context.updateLoggers()

    def _restore(self) -> None:
        if self._appender is None:
            return
        context, root = self._logger()
        for appender in self._replaced:
            root.addAppender(appender, None, None)
        root.removeAppender(_NAME)
        context.updateLoggers()
        self._appender.stop()
        self._appender = None

    def _logger(self) -> tuple[Any, Any]:
        context = self._jvm.org.apache.logging.log4j.LogManager.getContext(False)
        return context, context.getConfiguration().getRootLogger()

    def _file_appender(self, context: Any) -> Any:
        core = self._jvm.org.apache.logging.log4j.core
        configuration = context.getConfiguration()
        layout = core.layout.PatternLayout.newBuilder().withPattern(_PATTERN).build()
        rolling = core.appender.rolling
        policy = rolling.SizeBasedTriggeringPolicy.createPolicy(_LARGEST)
        strategy = (
            rolling.DefaultRolloverStrategy.newBuilder()
            .withMax("1")
            .withConfig(configuration)
            .build()
        )
        appender = (
            core.appender.RollingFileAppender.newBuilder()
            .setName(_NAME)
            .setLayout(layout)
            .setConfiguration(configuration)
            .withFileName(str(self.path))
            .withFilePattern(f"{self.path}.%i")
            .withPolicy(policy)
            .withStrategy(strategy)
            .build()
        )
        appender.start()
        return appender
