"""`netfold bench`: how fast, beside a baseline measured in the same run."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from netfold.bench.allreduce import ELEMENT_BYTES, OURS, Plan, Round, run
from netfold.bench.machine import memory_available
from netfold.config import parse_address, parse_bytes
from netfold.errors import ConfigError
from netfold.lab import TeamError

ROUNDS_MIN = 5
WORKERS_MAX = 64
COPIES = 4  # a worker holds: what goes in, what comes out, what is expected, and one in passing
SIZES = ("4KiB", "256KiB", "4MiB", "64MiB")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure netfold beside a baseline."
)


class Mode(str, Enum):
    """What tensors hold and how they are added; the baseline adds fixed32's as float32."""

    FLOAT32 = "float32"
    FIXED32 = "fixed32"
    INT32 = "int32"
    INT64 = "int64"


class Strategy(str, Enum):
    """Where netfold adds: at a switch, or on shards beside the workers."""

    SWITCH = "switch"
    SHARDS = "shards"


class Baseline(str, Enum):
    """What to compare with."""

    GLOO = "gloo"
    NONE = "none"


@app.callback()
def bench() -> None:
    """Keeps `allreduce` a command of its own while it is the only one."""


@app.command()
def allreduce(
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    size: Annotated[
        list[str] | None, typer.Option(help="Bytes, as 4KiB, 64MiB or 1GiB; may be repeated.")
    ] = None,
    mode: Annotated[
        list[Mode] | None, typer.Option(help="Kind of numbers; may be repeated.")
    ] = None,
    against: Annotated[
        Baseline, typer.Option(help="The baseline, measured in turns with netfold.")
    ] = Baseline.GLOO,
    rounds: Annotated[int, typer.Option(help="Turns of each engine, at least 5.")] = 9,
    strategy: Annotated[
        list[Strategy] | None, typer.Option(help="Where netfold adds; may be repeated.")
    ] = None,
    switch: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running switch; else one is started.")
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers here.")
    ] = None,
) -> None:
    """Times all-reduce on this machine: each after a barrier, its slowest rank, in turns."""
    plan = Plan(
        workers=workers,
        sizes=[parse_bytes("--size", text) for text in size or SIZES],
        modes=[choice.value for choice in mode or [Mode.FLOAT32]],
        baselines=[] if against is Baseline.NONE else [against.value],
        rounds=rounds,
        strategies=[choice.value for choice in strategy or [Strategy.SWITCH]],
        switch=switch,
    )
    _check(plan, json_file)
    console = Console()
    try:
        result = _run_shown(plan, console)
    except TeamError as error:
        print(f"netfold: the benchmark failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    console.print(_table(result))


def _check(plan: Plan, json_file: Path | None) -> None:
    if not 2 <= plan.workers <= WORKERS_MAX:
        raise ConfigError(f"--workers={plan.workers} is wrong: expected 2 to {WORKERS_MAX}")
    if plan.rounds < ROUNDS_MIN:
        raise ConfigError(f"--rounds={plan.rounds} is too few to compare: expected {ROUNDS_MIN}+")
    for mode in plan.modes:
        for size in plan.sizes:
            if size % ELEMENT_BYTES[mode]:
                raise ConfigError(f"--size={size} is no whole number of {mode} elements")
    needed, free = plan.workers * COPIES * max(plan.sizes), memory_available()
    if needed > free:
        raise ConfigError(
            f"--size={max(plan.sizes)} with --workers={plan.workers} takes {needed:,} bytes of "
            f"memory, and {free:,} are free: choose a smaller size"
        )
    if plan.switch:
        parse_address("--switch", plan.switch)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"--json={json_file}: there is no folder {json_file.absolute().parent}")


def _run_shown(plan: Plan, console: Console) -> dict[str, Any]:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        total = len(plan.cases) * len(plan.engines) * plan.rounds
        bar = bars.add_task(f"starting {plan.workers} workers", total=total)

        def show(turn: Round) -> None:
            text = (
                f"{turn.engine}, {format_bytes(turn.size_bytes)} of {turn.mode}: "
                f"{format_seconds(turn.seconds)}"
            )
            bars.update(bar, advance=1, description=text)
            if not console.is_terminal and turn.number == plan.rounds - 1:
                console.print(f"last round: {text}", markup=False, highlight=False)

        return run(plan, show)


def _table(result: dict[str, Any]) -> Table:
    workers, load = result["results"][0]["workers"], result["loadavg"][0]
    table = Table(title=f"{workers} workers, {result['network']}, load {load} before the start")
    for name in ("size", "mode", "engine", "median", "best", "MB/s", "speed"):
        side: Any = "left" if name in ("mode", "engine") else "right"
        table.add_column(name, justify=side, no_wrap=True)
    for entry in result["results"]:
        table.add_row(
            format_bytes(entry["bytes"]),
            entry["mode"],
            f"{OURS} {entry['strategy']}" if entry["engine"] == OURS else entry["engine"],
            format_seconds(entry["median_s"]),
            format_seconds(entry["min_s"]),
            f"{entry['algbw_bytes_per_s'] / 1e6:,.1f}",
            _speed(result, entry),
            end_section=entry["engine"] != OURS,
        )
    table.caption = "speed: the baseline's median time over ours; above 1 netfold is faster"
    return table


def _speed(result: dict[str, Any], entry: dict[str, Any]) -> str:
    if entry["engine"] != OURS:
        return ""
    return ", ".join(
        f"{ratio['baseline_over_netfold']:.2f}"
        for ratio in result["ratios"]
        if all(ratio[key] == entry[key] for key in ("bytes", "mode", "strategy"))
    )


def format_bytes(count: int) -> str:
    """Exactly, in the largest unit that divides it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"


def format_seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
