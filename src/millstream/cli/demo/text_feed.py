"""The input of the demo: files of text that come into a folder at a steady pace."""

from __future__ import annotations

import os
import re
import threading
from itertools import count
from pathlib import Path

from millstream.cli.zipf import ZipfText

HOT = "millstream"
_WORDS_PER_LINE = 10
_DIFFERENT = 8  # files, which come again and again


class TextFeed:
    """Adds a file every ``pause`` seconds, or waits while ``ahead`` words are not yet counted.

    From the moment at which it is made ``hot``, every second word is the same.
    """

    def __init__(self, folder: Path, *, words: int, pause: float, ahead: int) -> None:
        """A file has ``words`` words."""
        self.folder = folder / "text"
        self.folder.mkdir()
        self.counted = self.added = 0
        self.hot = False
        self._words = words
        self._pause = pause
        self._ahead = ahead
        self._numbers = count()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._plain = folder / "plain"
        ZipfText(
            words=_DIFFERENT * words,
            words_per_line=_WORDS_PER_LINE,
            lines_per_file=words // _WORDS_PER_LINE,
        ).write(self._plain)
        self._skewed = folder / "skewed"
        self._skewed.mkdir()
        for file in self._plain.iterdir():
            skewed = re.sub(r"\S+ (\S+)", rf"{HOT} \1", file.read_text())
            (self._skewed / file.name).write_text(skewed)

    def add(self, files: int = 1) -> None:
        """Add files at once."""
        for _ in range(files):
            number = next(self._numbers)
            source = self._skewed if self.hot else self._plain
            # A link appears with its whole content; the stream may watch the folder already.
            os.link(source / f"{number % _DIFFERENT:06}.txt", self.folder / f"{number:06}.txt")
            self.added += self._words

    def tick(self) -> None:
        """Add a file, if the stream keeps up."""
        if self.added - self.counted < self._ahead:
            self.add()

    def start(self) -> None:
        """Begin to add files."""
        self._thread.start()

    def stop(self) -> None:
        """Add no more files."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            self.tick()
