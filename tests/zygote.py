"""Ranks forked from a process that has imported torch: it costs three seconds of a processor once,
not once for each rank.

A rank is a process as any other: it has its own pipes and environment, ends as an interpreter does,
and is the child of the tests, which take in orphans.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

ROOT: Final = Path(__file__).resolve().parents[1]
REQUEST_BYTES_MAX: Final = 1 << 17
PR_SET_CHILD_SUBREAPER: Final = 36


class Forked:
    """A rank, as subprocess.Popen would show it."""

    def __init__(self, pid: int, stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises TimeoutError."""
        if self.poll() is None and not select.select([self._pidfd], [], [], timeout_s)[0]:
            raise TimeoutError(f"rank {self.pid} runs after {timeout_s:g} s")
        code = self.poll()
        assert code is not None
        return code

    def close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            file.close()
        os.close(self._pidfd)


def fork(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """A new process runs that function of tests/programs.py."""
    ours, theirs = zip(*(_pipe(end) for end in (1, 0, 0)), strict=True)
    request = {"argv": [program, *arguments], "environment": dict(environment)}
    connection = _zygote()
    socket.send_fds(connection, [json.dumps(request).encode()], theirs)
    pid = int(connection.recv(100))
    for descriptor in theirs:
        os.close(descriptor)
    return Forked(pid, os.fdopen(ours[0], "w"), os.fdopen(ours[1]), os.fdopen(ours[2]))


def _pipe(our_end: int) -> tuple[int, int]:
    """(ours, theirs)."""
    ends = os.pipe()
    return ends[our_end], ends[1 - our_end]


@functools.cache
def _zygote() -> socket.socket:
    """Started once; it ends with us, at the end of the connection."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # read once, when torch is loaded
        )
    return ours


def _serve(connection: socket.socket) -> list[str]:
    """Forks a rank for each request; returns in each, with what it is to run."""
    while True:
        data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
        if not data:
            sys.exit()
        if os.fork() == 0:
            if os.fork():
                os._exit(0)  # so that the rank becomes the tests' child
            break
        os.wait()
        for descriptor in files:
            os.close(descriptor)
    connection.send(str(os.getpid()).encode())
    connection.close()
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request = json.loads(data)
    os.environ.clear()
    os.environ.update(request["environment"])
    argv: list[str] = request["argv"]
    return argv


if __name__ == "__main__":
    from tests import programs

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the tests end us
    what = _serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    programs.main(*what)
