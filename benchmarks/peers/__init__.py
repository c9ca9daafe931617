"""Adapters: how each engine counts words.

An engine's module has ``FORMS``, functions that run a task (``protocol.py``), and ``PACKAGES``,
whose versions are reported. It is imported only in the engine's process (``worker.py``), which the
harness starts (``peer.py``); ``entries.py`` lists all forms. Those that need a Spark session are
contenders (``contender.py``), which other benchmarks also run in their own session.
"""
