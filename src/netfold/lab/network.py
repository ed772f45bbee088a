"""A small network of namespaces: workers on one switch node.

Each worker has one interface; the other end of its cable is a port of a bridge in the switch node,
so that every byte of a worker passes the switch node and is counted there. Addresses are private
to the namespaces. Two labs, or a lab and the machine's own network, never meet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from netfold.lab import namespaces
from netfold.lab.counters import InterfaceCounters, interface_counters

SWITCH = -1
"""The switch's node number; workers count from 0."""
WORKERS_MAX = 64
WORKER_INTERFACE = "eth0"
SETUP_SECONDS_MAX = 30.0


def switch_address() -> str:
    return "10.117.0.1"


def worker_address(rank: int) -> str:
    return f"10.117.0.{rank + 2}"


def port_name(rank: int) -> str:
    """The bridge port that the cable of worker `rank` ends in."""
    return f"port{rank}"


class LabUnavailable(RuntimeError):
    """This machine does not let us make namespaces; the text names what is missing."""


class Lab:
    """Namespaces for `workers` workers and a switch, from `with` to its end.

    A process of ours holds them. It ends when this one closes the lab or dies in any way (more
    exactly, when the thread that opened the lab ends), and unless somebody still lives inside, the
    kernel removes all of it then. `mtu` is in bytes. With `offload` False packets are cut to the
    wire's size before they are counted. `rate_bits_per_s` shapes every cable both ways; 0 does not.
    """

    def __init__(
        self, workers: int, *, mtu: int = 1500, offload: bool = False, rate_bits_per_s: int = 0
    ) -> None:
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"a lab has 1 to {WORKERS_MAX} workers, not {workers}")
        self.workers = workers
        self._options = {
            "parent": os.getpid(),
            "workers": workers,
            "mtu": mtu,
            "offload": offload,
            "rate_bits_per_s": rate_bits_per_s,
        }
        self._holder: subprocess.Popen[bytes] | None = None
        self._user: int | None = None
        self._networks: list[int] = []

    def __enter__(self) -> Lab:
        self._holder = subprocess.Popen(
            [sys.executable, "-m", "netfold.lab.holder", json.dumps(self._options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; we end the holder
        )
        try:
            self._adopt(self._holder)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the namespaces; idempotent."""
        for descriptor in [*self._networks, self._user]:
            if descriptor is not None:
                os.close(descriptor)
        self._networks, self._user = [], None
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            self._holder = None

    @property
    def rootless(self) -> bool:
        """Whether the namespaces belong to a user namespace of ours."""
        return self._user is not None

    def address(self, node: int) -> str:
        """IPv4 address of worker `node`, or of the switch."""
        return switch_address() if node == SWITCH else worker_address(node)

    def popen(self, node: int, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts `command` inside a node, as subprocess.Popen does; it dies with this thread."""
        network = self._networks[node + 1]
        inherited = [network] if self._user is None else [network, self._user]
        return subprocess.Popen(
            inside(command, network=network, user=self._user),
            pass_fds=[*inherited, *options.pop("pass_fds", ())],
            **options,
        )

    def counters(self, node: int) -> dict[str, InterfaceCounters]:
        """By interface: WORKER_INTERFACE of a worker; port_name(rank) at the switch."""
        if node != SWITCH:
            raise ValueError("a worker's counters are read inside: interface_counters()")
        return interface_counters(self.holder_process)

    @property
    def holder_process(self) -> int:
        """The process that keeps the namespaces; it lives in the switch's."""
        if self._holder is None:
            raise RuntimeError("the lab is not open")
        return self._holder.pid

    def _adopt(self, holder: subprocess.Popen[bytes]) -> None:
        answer = _read_line(holder.stdout)
        if "refusal" in answer:
            raise LabUnavailable(answer["refusal"])
        folder = Path(f"/proc/{holder.pid}/fd")
        if answer["user"] is not None:
            self._user = os.open(folder / str(answer["user"]), os.O_RDONLY)
        for descriptor in answer["networks"]:
            self._networks.append(os.open(folder / str(descriptor), os.O_RDONLY))


def inside(
    command: Sequence[str], *, network: int | None = None, user: int | None = None
) -> list[str]:
    """`command` wrapped so that it runs in these namespaces and dies with its parent."""
    wrapped = [sys.executable, "-I", "-S", namespaces.__file__, "--bind-to", str(os.getpid())]
    if user is not None:
        wrapped += ["--user", str(user)]
    if network is not None:
        wrapped += ["--network", str(network)]
    return [*wrapped, "--", *command]


def _read_line(pipe: IO[bytes] | None) -> dict[str, Any]:
    assert pipe is not None
    import select

    if not select.select([pipe], [], [], SETUP_SECONDS_MAX)[0]:
        raise LabUnavailable(f"namespaces were not ready in {SETUP_SECONDS_MAX:.0f} s")
    line = pipe.readline()
    if not line:
        raise LabUnavailable("the process that makes namespaces ended without a word")
    answer: dict[str, Any] = json.loads(line)
    return answer
