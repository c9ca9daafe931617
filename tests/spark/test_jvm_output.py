from __future__ import annotations

from millstream.spark.jvm_output import without_broken_pipes

BROKEN = b"""Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = b"""Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/home/me/job.py", line 3, in parse
    sink.write(row)
BrokenPipeError: [Errno 32] Broken pipe
"""


def passed_on(text: bytes) -> bytes:
    return b"".join(without_broken_pipes(text.splitlines(keepends=True)))


def test_what_users_functions_print_is_passed_on() -> None:
    text = b"hello\n  indented\nlast, without an end"

    assert passed_on(text) == text


def test_workers_whose_task_was_cancelled_leave_no_stack_trace() -> None:
    assert passed_on(b"before\n" + BROKEN + BROKEN + b"after\n") == b"before\nafter\n"


def test_stack_traces_of_users_functions_are_passed_on() -> None:
    assert passed_on(OTHER + BROKEN + OTHER) == OTHER + OTHER


def test_a_stack_trace_that_is_cut_off_is_passed_on() -> None:
    cut = BROKEN[:-40]

    assert passed_on(cut) == cut
