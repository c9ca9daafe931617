"""Processes by number and start, valid on one boot of one host, in one container."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from millstream.wire.process_identity import this_process


def test_the_calling_process_runs() -> None:
    assert this_process().pid == os.getpid()
    assert this_process().is_running() is True
    assert this_process() == this_process()


def test_a_process_that_got_the_number_of_another_is_not_the_other() -> None:
    earlier = replace(this_process(), start=this_process().start - 1)

    assert earlier.is_running() is False


def test_a_process_that_has_ended_and_was_not_waited_for_does_not_run() -> None:
    code = "from millstream.wire.process_identity import this_process as t; print(t().start)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, close_fds=True
    )
    assert child.stdout is not None
    ended = replace(this_process(), pid=child.pid, start=int(child.stdout.read()))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie

    assert os.path.exists(f"/proc/{child.pid}")
    assert ended.is_running() is False
    child.wait()
    assert ended.is_running() is False


def test_no_process_survives_a_reboot_of_its_host() -> None:
    assert replace(this_process(), boot="earlier").is_running() is False


def test_processes_of_other_hosts_and_containers_are_unknown() -> None:
    here = this_process()

    assert replace(here, boot="another", host="another").is_running() is None
    assert replace(here, namespace="pid:[1]").is_running() is None
