"""Trains a small CNN on Fashion-MNIST with DDP and prints its accuracy.

    netfold run --nproc 2 examples/cnn_fashion_mnist.py
    torchrun --nproc-per-node 2 examples/cnn_fashion_mnist.py --backend gloo

The pictures come from Debian's package dataset-fashion-mnist, or from the same four idx.gz files
in another folder (--data).
"""

from __future__ import annotations

import argparse
import gzip
import struct
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path("/usr/share/datasets/fashion-mnist")


def read_idx(file: Path) -> torch.Tensor:
    """A file in idx format: two zero bytes, type 8 (bytes), dimensions, their sizes, the bytes."""
    data = gzip.decompress(file.read_bytes())
    kind, dimensions = struct.unpack_from(">HBB", data)[1:]
    if kind != 8:
        raise ValueError(f"{file} holds elements of type {kind}, not bytes (8)")
    sizes = struct.unpack_from(f">{dimensions}I", data, 4)
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).view(sizes)


def load(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures as [count, 1, 28, 28] in −1 … 1, and their classes."""
    pictures = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return pictures.unsqueeze(1).float() / 127.5 - 1, labels.long()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(model: nn.Module, folder: Path, steps: int, batch: int) -> None:
    rank, workers = dist.get_rank(), dist.get_world_size()
    pictures, labels = load(folder, "train")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(1)  # the same on all ranks; each takes its part
    for step in range(steps):
        chosen = torch.randint(len(labels), (batch * workers,), generator=order)
        mine = chosen.chunk(workers)[rank]
        loss = functional.cross_entropy(model(pictures[mine]), labels[mine])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def accuracy(model: nn.Module, folder: Path) -> float:
    """Share of the test pictures that are named right; each rank looks at its part of them."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    pictures, labels = load(folder, "t10k")
    with torch.no_grad():
        guesses = model(pictures[rank::workers]).argmax(1)
    right = torch.tensor([int((guesses == labels[rank::workers]).sum()), len(guesses)])
    dist.all_reduce(right)
    return int(right[0]) / int(right[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="trains a CNN on Fashion-MNIST with DDP")
    parser.add_argument("--backend", default="netfold")
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="pictures per worker and step")
    options = parser.parse_args()
    if not (options.data / "train-images-idx3-ubyte.gz").is_file():
        sys.exit(f"no pictures in {options.data}: apt-get install dataset-fashion-mnist, or --data")
    torch.set_num_threads(1)  # ranks share the cores
    dist.init_process_group(options.backend)
    try:
        torch.manual_seed(1)
        model = DistributedDataParallel(make_model())
        train(model, options.data, options.steps, options.batch)
        share = accuracy(model.module, options.data)
        if dist.get_rank() == 0:
            print(f"accuracy {share:.3f} on the test pictures")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
