from __future__ import annotations

from collections import Counter
from pathlib import Path

from millstream.cli.demo.text_feed import HOT, TextFeed


def feed_in(folder: Path) -> TextFeed:
    return TextFeed(folder, words=1_000, pause=0.001, ahead=3_000)


def words_in(folder: Path) -> Counter[str]:
    return Counter(word for file in folder.iterdir() for word in file.read_text().split())


def test_files_have_as_many_words_as_were_added(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)

    feed.add(20)

    assert len(list(feed.folder.iterdir())) == 20
    assert words_in(feed.folder).total() == feed.added == 20_000


def test_when_it_is_hot_every_second_word_is_the_same(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    feed.add(4)
    assert words_in(feed.folder)[HOT] == 0
    feed.hot = True

    feed.add(4)

    assert words_in(feed.folder)[HOT] == 2_000
    assert words_in(feed.folder).total() == 8_000


def test_it_waits_for_a_stream_that_does_not_keep_up(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    for _ in range(5):
        feed.tick()
    assert feed.added == 3_000

    feed.counted = 1_000
    feed.tick()

    assert feed.added == 4_000
