"""One rank of the demo's training. Talks to its owner in demo/training.py."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netfold.demo.model import CharacterGPT, Shape, loss_of, parameter_count
from netfold.demo.text import Text, batch, load_text
from netfold.demo.traffic import Traffic, rank_traffic
from netfold.lab.rank import init_group, rendezvous, run_rank, start_rank
from netfold.lab.team import Message, Owner

LEARNING_RATE = 1e-3
LEARNING_WARMUP_STEPS = 10
VALIDATION_SEQUENCES = 64  # per rank, and twice that many batches' worth of text is plenty
VALIDATION_BATCHES = 4


class Training:
    """Model, data and optimizer of one rank."""

    def __init__(self, options: Message, text: Text) -> None:
        self.rank: int = options["rank"]
        self.workers: int = options["workers"]
        self.seed: int = options["seed"]
        self.sequences: int = options["sequences"]
        self.text = text
        self.shape = Shape(characters=len(text.alphabet), **options["shape"])
        torch.manual_seed(self.seed)
        self.model = CharacterGPT(self.shape)
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
        )

    def backward(self, step: int, *, synchronise: bool = True) -> float:
        """Gradients of our part of batch `step`; returns its loss in nats per character."""
        with nullcontext() if synchronise else self.ddp.no_sync():
            loss = loss_of(self.ddp, self._batch(step))
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def update(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / LEARNING_WARMUP_STEPS)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def discard(self) -> None:
        """Forgets gradients that were not synchronised."""
        self.optimizer.zero_grad()

    def validate(self) -> float:
        """Mean loss over our share of the held-out text."""
        with torch.no_grad():
            losses = [
                loss_of(
                    self.model,
                    batch(
                        self.text.validation,
                        seed=self.seed,
                        step=number * self.workers + self.rank,
                        sequences=VALIDATION_SEQUENCES,
                        length=self.shape.context,
                    ),
                ).item()
                for number in range(VALIDATION_BATCHES)
            ]
        return statistics.fmean(losses)

    def _batch(self, step: int) -> torch.Tensor:
        everybody = batch(
            self.text.train,
            seed=self.seed,
            step=step,
            sequences=self.sequences * self.workers,
            length=self.shape.context,
        )
        return everybody.chunk(self.workers)[self.rank]


class Window:
    """The steady part of a training, in which bytes are counted. The owner counts the switch's
    meanwhile: at both ends everybody is quiet until it has."""

    def __init__(self, owner: Owner, options: Message) -> None:
        self.owner = owner
        self.options = options
        self.begun: Traffic | None = None

    def begin(self) -> None:
        self.begun = self._mark("begin")

    def end(self, iterations: int) -> Message:
        """Bytes per iteration; None where they cannot be counted."""
        ended = self._mark("end")
        if self.begun is None or ended is None:
            return {"rx": None, "tx": None}
        window = ended.since(self.begun)
        return {"rx": window.rx / iterations, "tx": window.tx / iterations}

    def _mark(self, name: str) -> Traffic | None:
        dist.barrier()
        traffic = rank_traffic(self.options["engine"], in_lab=self.options["in_lab"])
        if self.options["rank"] == 0:
            self.owner.send(mark=name)
            self.owner.receive()
        dist.barrier()
        return traffic


def train(owner: Owner, training: Training, options: Message) -> Message:
    """All steps. Reports each, and returns the traffic of the steady ones.

    Among the steady steps are probes: the same work on the same batch without communication.
    """
    steps, warmup, probe_every = options["steps"], options["warmup"], options["probe_every"]
    window = Window(owner, options)
    updates: list[float] = []
    for step in range(steps):
        if step == warmup:
            window.begin()
        if step >= warmup and (step - warmup) % probe_every == 0:
            # The same optimizer step is added to both, so that only communication differs.
            seconds = probe(training, step) + statistics.median(updates)
            owner.send(step=step, probe_s=seconds)
        start = time.perf_counter()
        loss = training.backward(step)
        if step == 0 and options.get("first_gradient_file"):
            save_gradient(training, options["first_gradient_file"])
        updated = time.perf_counter()
        training.update(step)
        end = time.perf_counter()
        updates.append(end - updated)
        owner.send(step=step, loss=loss, iteration_s=end - start)
    return window.end(steps - warmup)


def probe(training: Training, step: int) -> float:
    """Seconds of forward and backward pass without communication, started together."""
    dist.barrier()
    start = time.perf_counter()
    training.backward(step, synchronise=False)
    seconds = time.perf_counter() - start
    training.discard()
    dist.barrier()
    return seconds


def save_gradient(training: Training, file: str) -> None:
    if training.rank == 0:
        parameters = training.model.named_parameters()
        torch.save({name: p.grad.clone() for name, p in parameters if p.grad is not None}, file)


def paths_taken() -> dict[str, Any]:
    """Which of netfold's paths the collectives took, in bytes."""
    import netfold

    paths: dict[str, Any] = netfold.report()["paths"]
    return {name: used["bytes"] for name, used in paths.items()}


def work(owner: Owner) -> None:
    options = start_rank(owner)
    init_group(options["engine"], rendezvous(owner, options), options)
    training = Training(options, load_text())
    owner.send(gradient_bytes=4 * parameter_count(training.model), torch_version=torch.__version__)
    measured = train(owner, training, options)
    owner.send(traffic=measured, paths=paths_taken(), val_loss=training.validate())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(work)
