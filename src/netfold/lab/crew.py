"""The team of a training or a benchmark: its ranks and, if asked for, a switch."""

from __future__ import annotations

from typing import Any

from netfold.lab.network import SWITCH, Lab
from netfold.lab.team import Team

LOOPBACK = "127.0.0.1"
START_SECONDS_MAX = 120.0
"""Importing torch in many processes on few cores takes its time."""


def start_switch(team: Team) -> str:
    """Starts a switch and returns where ranks reach it, as host:port."""
    host = LOOPBACK if team.lab is None else team.lab.address(SWITCH)
    team.start("switch", "netfold.lab.switch_process", node=SWITCH)
    team.send("switch", {"host": host})
    return f"{host}:{team.expect('switch', 'port', START_SECONDS_MAX)}"


def start_ranks(
    team: Team, module: str, workers: int, *, switch: str | None, instructions: dict[str, Any]
) -> None:
    """Starts `workers` ranks that run `module`, and lets them find each other."""
    names = [rank_name(rank) for rank in range(workers)]
    for rank, name in enumerate(names):
        team.start(name, module, node=rank)
    for rank, name in enumerate(names):
        team.send(
            name,
            {
                **instructions,
                "rank": rank,
                "workers": workers,
                "address": store_address(team.lab),
                "in_lab": team.lab is not None,
                "switch": switch,
            },
        )
    port = team.expect(names[0], "store_port", START_SECONDS_MAX)
    for name in names[1:]:
        team.send(name, {"store_port": port})


def rank_name(rank: int) -> str:
    return f"worker {rank}"


def rank_of(name: str) -> int | None:
    """The rank a member's name tells; None of the switch."""
    return int(name.removeprefix("worker ")) if name.startswith("worker ") else None


def store_address(lab: Lab | None) -> str:
    """Rank 0's, where it serves the store."""
    return LOOPBACK if lab is None else lab.address(0)
