"""Runs seeds of the simulated net, and says how to replay those that fail."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from netfold import _native
from netfold.errors import ConfigError

SEEDS_PER_TASK = 50

app = typer.Typer(add_completion=False)


@app.command()
def main(
    seeds: Annotated[str, typer.Option(metavar="A:B", help="From A up to, not including, B.")],
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    workers: Annotated[int, typer.Option(help="Of every group; 0: drawn from the seed.")] = 0,
    faults: Annotated[str, typer.Option(help='Names with commas, or "none"; "": drawn.')] = "",
    trace: Annotated[bool, typer.Option(help="Print every packet; for one seed.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the failures.")] = None,
) -> None:
    """Runs the engines against faults; exit code 1 if a check failed."""
    first, last = _range(seeds)
    console = Console(stderr=True)
    tasks = [
        (range(at, min(at + SEEDS_PER_TASK, last)), workers, faults, trace)
        for at in range(first, last, SEEDS_PER_TASK)
    ]
    failures: list[dict[str, Any]] = []
    events = 0
    for count, failed in track(_results(tasks, jobs), "seeds", len(tasks), console=console):
        events += count
        for report in failed:
            failures.append(report)
            print(failure_text(report), flush=True)
    if json_file is not None:
        json_file.write_text(json.dumps(failures, indent=1) + "\n")
    print(f"{last - first} seeds, {events:,} events, {len(failures)} failed")
    raise typer.Exit(1 if failures else 0)


def failure_text(report: dict[str, Any]) -> str:
    """What failed, where, and the one command that replays it."""
    seed, options = report["seed"], report["options"]
    return (
        f"seed={seed} commit={commit()} faults={report['faults']}\n{report['error']}"
        f"replay: python -m netfold.sim --seeds {seed}:{seed + 1}{options} --trace"
    )


def commit() -> str:
    """The commit of the tree this runs in, or "unknown"."""
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def run_seed(seed: int, workers: int = 0, faults: str = "", trace: bool = False) -> dict[str, Any]:
    """One run; the report of `_native.simulate` with the seed and the options to repeat it."""
    report = dict(_native.simulate(seed, workers=workers, faults=faults, trace=trace))
    options = (f" --workers {workers}" if workers else "") + (
        f" --faults {faults}" if faults else ""
    )
    return {**report, "seed": seed, "options": options}


def _run_task(task: tuple[range, int, str, bool]) -> tuple[int, list[dict[str, Any]]]:
    seeds, workers, faults, trace = task
    reports = [run_seed(seed, workers, faults, trace) for seed in seeds]
    for report in reports:
        if trace:
            print(report["trace"], end="")
    failed = [{**report, "trace": ""} for report in reports if not report["ok"]]
    return sum(report["events"] for report in reports), failed


def _results(
    tasks: list[tuple[range, int, str, bool]], jobs: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    if jobs == 1:
        yield from map(_run_task, tasks)
        return
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is ours: the pool's processes leave it alone and end with the pool.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, context, signal.signal, ignore) as pool:
        try:
            yield from pool.map(_run_task, tasks)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _range(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise ConfigError(f"--seeds={text!r} is wrong: expected two numbers as 0:10000")
    return int(first), int(last)
