"""Processes a test started, and whether they are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

# The command, whatever PATH says.
NETFOLD: Final = (sys.executable, "-c", "from netfold.cli import main; main()")


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that a failing test leaves neither running nor with children running."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            for pid in [*children(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.communicate()


def children(process: int) -> list[int]:
    """Those of all threads of `process`."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def wait_for_children(process: int, count: int, seconds_max: float = 30.0) -> list[int]:
    """Once there are `count`, or after `seconds_max`, or when `process` has ended."""
    deadline = time.monotonic() + seconds_max
    while len(found := children(process)) < count and alive(process):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def left_alive(processes: Sequence[int], seconds_max: float = 10.0) -> list[int]:
    """Those still there after at most `seconds_max`; one that only its parent has not read yet is
    gone."""
    deadline = time.monotonic() + seconds_max
    while (found := [pid for pid in processes if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
