"""`netfold switch`: an aggregating switch as a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from netfold import config, defaults
from netfold._native import SwitchServer
from netfold._wire import Cause, Refusal
from netfold.config import Address
from netfold.errors import ConfigError

_TURN_NS = defaults.nanoseconds(defaults.WAIT_TURN_S)


def switch(
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 chooses one; repeats."),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only workers with the same file may join.")
    ] = None,
    parent: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Hand sums up to the switch there: a tree.")
    ] = "",
    memory: Annotated[str, typer.Option(help="Slot memory, all groups together.")] = "1GiB",
    port_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write host:port here once listening.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events as lines of JSON.")] = False,
) -> None:
    """Adds the gradients of all workers that name this address in NETFOLD_SWITCH.

    With --parent it adds those of its own workers only and hands one sum up; workers of a job may
    then name different switches of one tree, which have the same secret file if any has one.

    The first Ctrl-C or SIGTERM drains: no new groups, and the end when those there have left. The
    second ends at once and tells the workers.
    """
    secret = config.read_secret("--secret-file", str(secret_file)) if secret_file else None
    memory_bytes = config.parse_bytes("--memory", memory)
    default = f"{defaults.SWITCH_LISTEN}:{defaults.SWITCH_PORT}"
    addresses = [config.parse_address("--listen", text, port_min=0) for text in listen or [default]]
    servers: list[SwitchServer] = []
    try:
        above = config.parse_address("--parent", parent) if parent else None
        servers.extend(_open(address, secret, memory_bytes, above) for address in addresses)
        bound = [
            Address(host=address.host, port=server.port)
            for address, server in zip(addresses, servers, strict=True)
        ]
        if port_file is not None:
            _write_ports(port_file, bound)
        for address in bound:
            _print({"kind": "listening", "address": str(address)}, as_json)
        _serve(servers, as_json)
    finally:
        for server in servers:
            server.stop()


def _write_ports(file: Path, bound: Sequence[Address]) -> None:
    try:
        file.write_text("".join(f"{address}\n" for address in bound))
    except OSError as error:
        raise ConfigError(f"--port-file={file} cannot be written: {error.strerror}") from None


def _open(
    address: Address, secret: bytes | None, memory_bytes: int, parent: Address | None
) -> SwitchServer:
    above = config.resolve(parent, "--parent") if parent else ""
    try:
        return SwitchServer(
            host=config.resolve(address, "--listen"),
            port=address.port,
            secret=secret,
            window_max=defaults.WINDOW_MAX,
            receive_buffer_bytes=defaults.RECEIVE_BUFFER_BYTES,
            memory_bytes_max=memory_bytes,
            lease_ns=defaults.nanoseconds(defaults.LEASE_S),
            parent_host=above,
            parent_port=parent.port if parent else 0,
        )
    except OSError as error:
        raise ConfigError(f"{error.strerror or error}; choose another --listen") from None


def _serve(servers: Sequence[SwitchServer], as_json: bool) -> None:
    with _stops() as stops:
        draining = False
        ended = [False] * len(servers)
        # One server is waited for; several are looked at in turns.
        turn_ns = _TURN_NS if len(servers) == 1 else _TURN_NS // (5 * len(servers))
        while not all(ended):
            for index, server in enumerate(servers):
                ended[index] = ended[index] or server.wait(turn_ns)
                for event in server.events():
                    _print(event, as_json)
            if len(stops) > 1:
                return
            if stops and not draining:
                draining = True
                _print({"kind": "draining"}, as_json)
                for server in servers:
                    server.drain()


@contextmanager
def _stops() -> Iterator[list[int]]:
    """The SIGINT and SIGTERM that came so far."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(event: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(event) if as_json else f"netfold switch: {_sentence(event)}", flush=True)


def _sentence(event: dict[str, Any]) -> str:
    kind = event["kind"]
    if kind == "listening":
        return f"listening on {event['address']}"
    if kind == "draining":
        return "draining: ends when all groups have left; once more to end now"
    who = f"job {event['job']!r}, group {event['group']:016x} of {event['size']}"
    if kind == "group_settled":
        return f"{who} joined: chunks of {event['payload_bytes']} bytes, window {event['window']}"
    if kind == "group_broken":
        ranks = [str(rank) for rank in range(event["size"]) if event["ranks"] >> rank & 1]
        named = f", rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else ""
        return f"{who} broke: {Cause(event['cause']).name.lower()}{named}"
    if kind == "member_refused":
        return f"{who}: rank {event['rank']} refused: {Refusal(event['reason']).name.lower()}"
    return f"{who} closed"
