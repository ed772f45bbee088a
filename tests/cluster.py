"""Real processes for tests: a `netfold switch`, and ranks that run a function of a module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import zygote
from tests.processes import NETFOLD
from tests.zygote import Forked

ROOT = Path(__file__).parents[1]
DEADLINE_S = 60.0


class Switch:
    """`netfold switch` as a process."""

    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        port_file = folder / f"port{time.monotonic_ns()}"
        command = [
            *NETFOLD,
            "switch",
            "--json",
            "--listen",
            listen,
            "--port-file",
            str(port_file),
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()  # "listening", written after the port file
        self.address = port_file.read_text().strip()

    @property
    def host_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def events(self) -> list[dict[str, Any]]:
        """All it printed; call it after the end."""
        assert self.process.stdout is not None
        return [json.loads(line) for line in self.process.stdout]


@contextmanager
def running_switch(folder: Path, *options: str, **more: str) -> Iterator[Switch]:
    switch = Switch(folder, *options, **more)
    try:
        yield switch
    finally:
        switch.stop()


@dataclass
class Rank:
    """One rank's process; what it prints is a line of JSON each."""

    process: Forked

    def read(self) -> Any:
        """The next line; the test's own timeout bounds it."""
        line = self.process.stdout.readline()
        assert line, f"rank ended with {self.process.wait()}: {self.stderr()}"
        return json.loads(line)

    def say(self, word: str) -> None:
        """A line to its standard input."""
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def go_on(self) -> None:
        """Ends its standard input: whatever it waits for has been said."""
        self.process.stdin.close()

    def stderr(self) -> str:
        return self.process.stderr.read()

    def end(self) -> int:
        return self.process.wait(DEADLINE_S)


@contextmanager
def aggregators(kind: str, folder: Path) -> Iterator[str]:
    """What NETFOLD_SWITCH is to say: of "switch", "2 switches" or "shards" (nothing); of a "tree"
    of two racks with a space between, for the even ranks and for the odd ones."""
    count = {"switch": 1, "2 switches": 2, "shards": 0, "tree": 1}[kind]
    with ExitStack() as stack:
        switches = [stack.enter_context(running_switch(folder)) for _ in range(count)]
        named = ",".join(switch.address for switch in switches)
        if kind == "tree":
            above = ("--parent", named)
            racks = [stack.enter_context(running_switch(folder, *above)) for _ in range(2)]
            named = " ".join(switch.address for switch in racks)
        yield named


@contextmanager
def ranks(
    program: str, size: int, address: str = "", *, arguments: tuple[str, ...] = (), **env: str
) -> Iterator[list[Rank]]:
    """`size` processes that run a function of tests/programs.py, with a store of their own; for
    `address` see aggregators()."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, **env}
    environment.pop("NETFOLD_SWITCH", None)
    racks = address.split()
    found = []
    try:
        for rank in range(size):
            if racks:
                environment["NETFOLD_SWITCH"] = racks[rank % len(racks)]
            told = (str(rank), str(size), str(store.port), *arguments)
            found.append(Rank(zygote.fork(program, told, environment)))
        yield found
    finally:
        for one in found:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
            one.process.close()


def outcomes(program: str, size: int, address: str, **more: Any) -> list[dict[str, Any]]:
    """Runs it to the end; the one line of each rank."""
    with ranks(program, size, address, **more) as members:
        lines = [member.read() for member in members]
        for member in members:
            assert member.end() == 0, member.stderr()
    return lines
