"""The owner's side of the demo: starts the ranks, follows them, and puts numbers together.

Does not import torch: the ranks do.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from netfold.demo import traffic
from netfold.demo.traffic import Traffic
from netfold.lab import SWITCH, Lab, Team
from netfold.lab.crew import rank_of, start_ranks, start_switch
from netfold.lab.network import port_name
from netfold.lab.team import Event, Message

SILENCE_SECONDS_MAX = 120.0
ENGINES = ("netfold", "gloo")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What both engines train; sequences are per worker and step."""

    workers: int = 4
    steps: int = 60
    sequences: int = 10
    seed: int = 1
    warmup: int = 6  # DDP rebuilds its buckets, allocators fill
    probe_every: int = 8
    shape: dict[str, int] = field(default_factory=dict)  # changes to demo.model.Shape
    first_gradient_file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step that all ranks have finished."""

    step: int  # from 0
    loss: float  # nats per character, mean over the ranks
    iteration_s: float  # of the slowest rank


@dataclass(kw_only=True)
class Record:
    """What the ranks of one training said, by step and by rank."""

    losses: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    iterations: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    probes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    endings: dict[int, Message] = field(default_factory=dict)
    about: Message = field(default_factory=dict)
    switch: dict[str, Traffic] = field(default_factory=dict)  # by mark


def train(
    engine: str, options: Options, lab: Lab | None, on_progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """One whole training with `engine`; its entry in the demo's JSON."""
    record = Record()
    with Team(lab) as team:
        switch = start_switch(team) if engine == "netfold" else None
        instructions = {"engine": engine} | {
            name: getattr(options, name) for name in options.__dataclass_fields__
        }
        start_ranks(
            team,
            "netfold.demo.worker",
            options.workers,
            switch=switch,
            instructions=instructions,
        )
        while len(record.endings) < options.workers:
            event = team.next_event(SILENCE_SECONDS_MAX)
            if "mark" in event.message:
                _read_switch(record, event.message["mark"], team)
                team.send(event.member, {})
            else:
                _take(record, event, options, on_progress)
                if "val_loss" in event.message:  # its last: it may go before the others' came
                    team.release(event.member)
    return summarise(engine, options, record, in_lab=lab is not None)


def _take(
    record: Record, event: Event, options: Options, on_progress: Callable[[Progress], None]
) -> None:
    message = event.message
    rank = rank_of(event.member)
    assert rank is not None, message
    if "val_loss" in message:
        record.endings[rank] = message
    elif "probe_s" in message:
        record.probes[message["step"]].append(message["probe_s"])
    elif "loss" in message:
        step = message["step"]
        record.losses[step].append(message["loss"])
        record.iterations[step].append(message["iteration_s"])
        if len(record.losses[step]) == options.workers:
            on_progress(
                Progress(
                    step=step,
                    loss=statistics.fmean(record.losses[step]),
                    iteration_s=max(record.iterations[step]),
                )
            )
    else:
        record.about.update(message)


def _read_switch(record: Record, mark: str, team: Team) -> None:
    """What the switch received and sent up to now, while nobody sends."""
    if team.lab is not None:
        ports = team.lab.counters(SWITCH)
        names = [port_name(rank) for rank in range(team.lab.workers)]
        record.switch[mark] = traffic.of_interfaces({name: ports[name] for name in names})
    elif "switch" in team:
        team.send("switch", {"counters": True})
        counters = team.expect("switch", "counters", SILENCE_SECONDS_MAX)
        record.switch[mark] = traffic.of_engine(counters)


def summarise(engine: str, options: Options, record: Record, *, in_lab: bool) -> dict[str, Any]:
    """The entry of netfold.demo/1: steady steps only, times of the slowest rank."""
    iterations = _slowest(record.iterations)[options.warmup :]
    probes = _slowest(record.probes)
    iteration_s = statistics.median(iterations)
    per_iteration = options.steps - options.warmup
    switch = None
    if engine == "netfold" and record.switch:
        switch = record.switch["end"].since(record.switch["begin"])
    endings = list(record.endings.values())
    tx, rx = (_mean([ending["traffic"][way] for ending in endings]) for way in ("tx", "rx"))
    source = traffic.IN_LAB if in_lab else traffic.ON_LOOPBACK[engine]
    return {
        "val_loss": statistics.fmean(ending["val_loss"] for ending in endings),
        "iterations": options.steps,
        "iteration_s_median": iteration_s,
        "comm_share": max(0.0, 1 - statistics.median(probes) / iteration_s),  # noise can be more
        "gradient_bytes": record.about["gradient_bytes"],
        "tx_bytes_per_worker_iteration": tx,
        "rx_bytes_per_worker_iteration": rx,
        "switch_rx_bytes_iteration": round(switch.rx / per_iteration) if switch else None,
        "switch_tx_bytes_iteration": round(switch.tx / per_iteration) if switch else None,
        "bytes_source": traffic.NOT_MEASURED if tx is None else source,
        "losses": [statistics.fmean(losses) for _, losses in sorted(record.losses.items())],
        "iteration_s": _slowest(record.iterations),
        "no_communication_s": probes,
        "no_communication_s_median": statistics.median(probes),
        "tensor_bytes_by_path": endings[0]["paths"],
        "torch": record.about["torch_version"],
    }


def _slowest(by_step: dict[int, list[float]]) -> list[float]:
    return [max(seconds) for _, seconds in sorted(by_step.items())]


def _mean(values: Sequence[float | None]) -> int | None:
    counted = [value for value in values if value is not None]
    return round(statistics.fmean(counted)) if len(counted) == len(values) else None
