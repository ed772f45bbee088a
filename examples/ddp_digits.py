"""Handwritten digits with DistributedDataParallel: `netfold run --nproc 2 examples/ddp_digits.py`.

Only the backend's name differs from a script for gloo.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

EPOCHS, BATCH = 20, 32


def main() -> None:
    dist.init_process_group("netfold")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    train_images, train_labels = images[~test], labels[~test]
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(EPOCHS):
        order = torch.randperm(len(train_labels))  # the same on all ranks: same seed
        for start in range(0, len(order) - BATCH * size + 1, BATCH * size):
            mine = order[start + rank * BATCH : start + (rank + 1) * BATCH]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(train_images[mine]), train_labels[mine])
            loss.backward()
            optimizer.step()
    right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    if rank == 0:
        print(f"accuracy {right:.3f} on {int(test.sum())} digits it has not seen")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
