"""Adapters: how each engine counts words.

An adapter is a function that starts a streaming query over a text and returns when it has ended:
what it measured is Spark's own ``triggerExecution`` of every epoch, and the counts it ended with
are read afterwards, outside of the measured time.
"""
