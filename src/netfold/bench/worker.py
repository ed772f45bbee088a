"""One rank of the all-reduce benchmark. Talks to its owner in bench/allreduce.py."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from netfold.lab.rank import init_group, rendezvous, run_rank, start_rank
from netfold.lab.team import Message, Owner

DTYPES = {
    "float32": torch.float32,
    "fixed32": torch.float32,
    "int32": torch.int32,
    "int64": torch.int64,
}
PATTERN = 509
"""Elements repeat after this many, a prime, so that no chunk looks like its neighbour; small
enough that float32 adds them exactly."""
RANK_STEP = 7
QUIET_SECONDS = 0.02
"""For the owner to show the round before, on the same cores."""


class Case:
    """Tensors of one size and dtype: what goes in, and where it is reduced."""

    def __init__(self, size_bytes: int, mode: str, rank: int, workers: int) -> None:
        dtype = DTYPES[mode]
        count = size_bytes // dtype.itemsize
        pattern = torch.arange(PATTERN, dtype=dtype).repeat(count // PATTERN + 1)[:count]
        self.source = pattern + RANK_STEP * rank
        self.expected = pattern.mul_(workers).add_(RANK_STEP * workers * (workers - 1) // 2)
        self.buffer = torch.empty_like(self.source)

    def run(self, group: Any) -> float:
        """One all-reduce, started together; its seconds on this rank."""
        self.buffer.copy_(self.source)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(self.buffer, group=group)
        return time.perf_counter() - start

    def verify(self, group: Any) -> bool:
        """Whether all-reduce gives the exact sum; a warm-up as well."""
        self.run(group)
        return torch.equal(self.buffer, self.expected)


def make_groups(engines: list[str], mode: str) -> dict[str, Any]:
    """A group of each engine; the baselines' own, as barriers go through the world's for all."""
    os.environ["NETFOLD_MODE"] = mode if mode == "fixed32" else ""
    switch = os.environ.pop("NETFOLD_SWITCH", "")
    groups = {}
    for engine in engines:
        backend, _, strategy = engine.partition(" ")
        os.environ["NETFOLD_SWITCH"] = switch if strategy == "switch" else ""
        groups[engine] = dist.new_group(backend=backend)
    os.environ["NETFOLD_SWITCH"] = switch
    return groups


def measure(owner: Owner, options: Message) -> None:
    """Every case: verified, then rounds in which the engines take turns."""
    modes = {case["mode"] for case in options["cases"]}
    of_mode = {mode: make_groups(options["engines"], mode) for mode in sorted(modes)}
    for number, case in enumerate(options["cases"]):
        groups = of_mode[case["mode"]]
        tensors = Case(case["bytes"], case["mode"], options["rank"], options["workers"])
        for engine, group in groups.items():
            right = tensors.verify(group)
            owner.send(case=number, engine=engine, verified=right)
            if not right:
                raise SystemExit(f"{engine} gave a wrong sum of {case['bytes']} bytes")
        for turn in range(options["rounds"]):
            for engine, group in groups.items():
                time.sleep(QUIET_SECONDS)
                if case["iterations"] > 1:
                    tensors.run(group)  # after the other engine's turn: not measured
                seconds = [tensors.run(group) for _ in range(case["iterations"])]
                owner.send(case=number, engine=engine, round=turn, seconds=seconds)


def work(owner: Owner) -> None:
    options = start_rank(owner)
    init_group("gloo", rendezvous(owner, options), options)
    measure(owner, options)
    dist.barrier()
    owner.send(done=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(work)
