"""The owner's side of the all-reduce benchmark. Does not import torch: the ranks do."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from netfold.bench.machine import describe_machine, load_averages
from netfold.lab.crew import rank_of, start_ranks, start_switch
from netfold.lab.team import Team

SCHEMA = "netfold.bench/1"
OURS = "netfold"
BASELINE_STRATEGIES = {"gloo": "gloo default"}
ELEMENT_BYTES = {"float32": 4, "fixed32": 4, "int32": 4, "int64": 8}
BASELINE_MODES = {"fixed32": "float32"}  # what the others make of the same tensors
SILENCE_SECONDS_MAX = 300.0
# All-reduces in a round, by size up to which they hold: small ones jitter more and cost less.
ITERATIONS = ((64 << 10, 20), (1 << 20, 8), (16 << 20, 3))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to measure. `switch` is host:port of one that runs already; "" starts one."""

    workers: int
    sizes: Sequence[int]  # bytes
    modes: Sequence[str]
    baselines: Sequence[str]
    rounds: int
    strategies: Sequence[str] = ("switch",)
    switch: str = ""

    @property
    def engines(self) -> list[str]:
        """Who takes turns: "netfold switch", "netfold shards", and the baselines."""
        return [*(f"{OURS} {strategy}" for strategy in self.strategies), *self.baselines]

    @property
    def cases(self) -> list[dict[str, Any]]:
        return [
            {"bytes": size, "mode": mode, "iterations": iterations_of(size)}
            for mode in self.modes
            for size in self.sizes
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One engine's turn, finished by all ranks."""

    size_bytes: int
    mode: str
    engine: str
    number: int  # from 0
    seconds: float  # an all-reduce, of its slowest rank


def iterations_of(size_bytes: int) -> int:
    """All-reduces in one round."""
    return next((count for limit, count in ITERATIONS if size_bytes <= limit), 1)


def run(plan: Plan, on_round: Callable[[Round], None]) -> dict[str, Any]:
    """Measures everything; the JSON of netfold.bench/1."""
    load = load_averages()
    rounds: dict[tuple[int, str], list[float]] = defaultdict(list)
    with Team() as team:
        switch = plan.switch or (start_switch(team) if "switch" in plan.strategies else "")
        start_ranks(
            team,
            "netfold.bench.worker",
            plan.workers,
            switch=switch,
            instructions={"cases": plan.cases, "engines": plan.engines, "rounds": plan.rounds},
        )
        _follow(team, plan, rounds, on_round)
    results = [
        _result(plan, number, engine, rounds[number, engine])
        for number, case in enumerate(plan.cases)
        for engine in plan.engines
    ]
    return {
        "schema": SCHEMA,
        "loadavg": load,
        "loadavg_after": load_averages(),
        "results": results,
        "ratios": ratios(results),
        "network": f"switch at {plan.switch}" if plan.switch else "loopback",
        **describe_machine(),
    }


def _follow(
    team: Team,
    plan: Plan,
    rounds: dict[tuple[int, str], list[float]],
    on_round: Callable[[Round], None],
) -> None:
    """Collects rounds until all ranks are done."""
    waiting: dict[tuple[int, str, int], list[list[float]]] = defaultdict(list)
    done = 0
    while done < plan.workers:
        name, message = team.next_event(SILENCE_SECONDS_MAX)
        if "done" in message:
            done += 1
            team.release(name)
            continue
        if rank_of(name) is None or "round" not in message:
            continue
        key = (message["case"], message["engine"], message["round"])
        waiting[key].append(message["seconds"])
        if len(waiting[key]) == plan.workers:
            seconds = slowest_median(waiting.pop(key))
            rounds[key[0], key[1]].append(seconds)
            case = plan.cases[key[0]]
            on_round(
                Round(
                    size_bytes=case["bytes"],
                    mode=case["mode"],
                    engine=key[1],
                    number=key[2],
                    seconds=seconds,
                )
            )


def slowest_median(ranks: Sequence[Sequence[float]]) -> float:
    """Per iteration the slowest rank's time; the median of these.

    Not the mean: on a machine with more threads than cores some iterations of any engine wait for
    a whole turn of the scheduler, and a few of those would be all that is seen of small sizes.
    """
    slowest: list[float] = [max(times) for times in zip(*ranks, strict=True)]
    return statistics.median(slowest)


def _result(plan: Plan, number: int, engine: str, rounds: list[float]) -> dict[str, Any]:
    case = plan.cases[number]
    mode = case["mode"]
    median = statistics.median(rounds)
    name, _, strategy = engine.partition(" ")
    return {
        "case": number,
        "engine": name,
        "strategy": strategy or BASELINE_STRATEGIES[name],
        "mode": mode if name == OURS else BASELINE_MODES.get(mode, mode),
        "workers": plan.workers,
        "bytes": case["bytes"],
        "rounds_s": rounds,
        "median_s": median,
        "min_s": min(rounds),
        "algbw_bytes_per_s": case["bytes"] / median,
        "iterations_per_round": case["iterations"],
        "verified": True,  # or a rank would have ended the run
    }


def ratios(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours against every baseline in the same case; above 1 we are faster."""
    return [
        {
            "bytes": ours["bytes"],
            "mode": ours["mode"],
            "strategy": ours["strategy"],
            "workers": ours["workers"],
            "baseline": other["engine"],
            "baseline_mode": other["mode"],
            "baseline_over_netfold": other["median_s"] / ours["median_s"],
            "baseline_over_netfold_min": other["min_s"] / ours["min_s"],
        }
        for ours in results
        for other in results
        if ours["engine"] == OURS and other["engine"] != OURS and other["case"] == ours["case"]
    ]
