"""What every rank of a team does first: find the others. Imports torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from netfold.errors import NetfoldError
from netfold.lab.network import WORKER_INTERFACE
from netfold.lab.team import Message, Owner

GROUP_TIMEOUT = timedelta(seconds=120)


def run_rank(work: Callable[[Owner], None]) -> None:
    """A rank's whole life; an error of netfold's is one sentence, which the owner shows."""
    try:
        work(Owner())
    except NetfoldError as error:
        sys.exit(error.message)


def start_rank(owner: Owner) -> Message:
    """The owner's instructions; {"rank", "workers", "address", "in_lab", "switch"} among them.

    Sets the environment both engines read, and one compute thread: ranks share the cores.
    """
    import netfold.autoload

    netfold.autoload.register()  # even with torch's autoload switched off
    torch.set_num_threads(1)
    instructions = owner.receive()
    os.environ["GLOO_SOCKET_IFNAME"] = WORKER_INTERFACE if instructions["in_lab"] else "lo"
    if instructions["switch"]:
        os.environ["NETFOLD_SWITCH"] = instructions["switch"]
    return instructions


def rendezvous(owner: Owner, instructions: Message) -> Store:
    """Rank 0 serves the store on a free port and tells the owner, who tells the others."""
    serving = instructions["rank"] == 0
    port = 0 if serving else owner.receive()["store_port"]
    store = TCPStore(
        instructions["address"],
        port,
        instructions["workers"],
        is_master=serving,
        timeout=GROUP_TIMEOUT,
        wait_for_workers=False,
    )
    if serving:
        owner.send(store_port=store.port)
    return store


def init_group(engine: str, store: Store, instructions: Message) -> None:
    """The world group, with backend `engine`."""
    dist.init_process_group(
        engine,
        store=store,
        rank=instructions["rank"],
        world_size=instructions["workers"],
        timeout=GROUP_TIMEOUT,
    )
