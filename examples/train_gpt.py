"""Trains the demo's character model with DDP: an ordinary script, for any backend.

    netfold run --nproc 4 examples/train_gpt.py
    torchrun --nproc-per-node 4 examples/train_gpt.py --backend gloo

Nothing here knows of netfold but the name of the backend.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netfold.demo.model import CharacterGPT, Shape, loss_of, parameter_count
from netfold.demo.text import batch, load_text


def train(steps: int, sequences: int) -> None:
    rank, workers = dist.get_rank(), dist.get_world_size()
    text = load_text()
    shape = Shape(characters=len(text.alphabet))
    torch.manual_seed(1)
    model = DistributedDataParallel(CharacterGPT(shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    if rank == 0:
        print(f"{parameter_count(model):,} parameters, {workers} workers")
    for step in range(steps):
        start = time.perf_counter()
        everybody = batch(
            text.train,
            seed=1,
            step=step,
            sequences=sequences * workers,
            length=shape.context,
        )
        loss = loss_of(model, everybody.chunk(workers)[rank])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - start:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="trains a character GPT with DDP")
    parser.add_argument("--backend", default="netfold")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sequences", type=int, default=10, help="per worker and step")
    options = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    dist.init_process_group(options.backend)
    try:
        train(options.steps, options.sequences)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
