"""`netfold run`: torchrun on this machine, with a switch of its own if asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from netfold import config
from netfold._native import SwitchServer
from netfold.errors import ConfigError

NPROC_MAX = 64


def run(
    script: Annotated[str, typer.Argument(help="The training script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    nproc: Annotated[int, typer.Option(help="Training processes, 1 to 64.")] = 2,
    switch: Annotated[
        bool, typer.Option("--switch", help="Start a switch beside them, instead of shards.")
    ] = False,
) -> None:
    """Runs SCRIPT in NPROC processes under torchrun; exits as torchrun does."""
    if not 1 <= nproc <= NPROC_MAX:
        raise ConfigError(f"--nproc={nproc} is wrong: expected 1 to {NPROC_MAX}")
    if not Path(script).is_file():
        raise ConfigError(f"there is no script {script!r}")
    environment = dict(os.environ)
    named = environment.get("NETFOLD_SWITCH", "")
    if named:
        config.parse_addresses("NETFOLD_SWITCH", named)
    if switch and named:
        raise ConfigError(f"--switch starts a switch, but NETFOLD_SWITCH={named!r} names one")
    server = SwitchServer(host="127.0.0.1") if switch else None
    if server is not None:
        environment["NETFOLD_SWITCH"] = f"127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "netfold.cli.launch", "--standalone"]
    # Behind the "--" torchrun takes nothing for an option of its own.
    command += [f"--nproc-per-node={nproc}", "--", script, *(arguments or [])]
    try:
        code = _run(command, environment)
    finally:
        if server is not None:
            server.stop()
    raise typer.Exit(code)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Runs torchrun, hands SIGINT and SIGTERM on, and returns its exit code."""
    child = subprocess.Popen(command, env=environment)
    with _forwarded(child):
        while True:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                continue
            return code if code >= 0 else 128 - code


@contextmanager
def _forwarded(child: subprocess.Popen[bytes]) -> Iterator[None]:
    def forward(number: int, _frame: FrameType | None) -> None:
        # A terminal's Ctrl-C reached the child by itself; torchrun takes a second one well.
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
