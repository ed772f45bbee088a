"""Linux namespaces by their system calls, and, run as a program, a command inside some.

As a program it needs only the standard library, so that it starts in milliseconds:

    python -I -S namespaces.py [--user FD] [--network FD] [--bind-to PID] -- COMMAND ARGUMENT …

The command dies with the process PID (its parent), whatever ends that one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

NEW_USER = 0x10000000
NEW_NETWORK = 0x40000000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(kinds: int) -> None:
    """Moves this thread into new namespaces of `kinds`."""
    _check(_libc.unshare(kinds), "unshare")


def enter(descriptor: int, kind: int) -> None:
    """Moves this thread into the namespace behind `descriptor`."""
    _check(_libc.setns(descriptor, kind), "setns")


def network_descriptor() -> int:
    """A descriptor of this thread's network namespace; it keeps the namespace alive."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the thread of process `parent` that started it
    ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def become_root_of_new_user_namespace() -> None:
    """A user namespace whose root is this process's user: enough to make networks, and nothing of
    it is visible outside."""
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", type=int)
    parser.add_argument("--network", type=int)
    parser.add_argument("--bind-to", type=int)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    if options.user is not None:
        enter(options.user, NEW_USER)
    if options.network is not None:
        enter(options.network, NEW_NETWORK)
    if options.bind_to is not None:  # last: entering a user namespace clears it
        die_with_parent(options.bind_to)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main(sys.argv[1:])
