"""Speed beside gloo on one machine's loopback, as a table in Markdown.

    .venv/bin/python bench/loopback.py [--rounds 9] [--output FILE] [--json FOLDER]

One `netfold bench allreduce` per number of processes; within it the engines take turns. Loopback
has no links: the table says what the engines cost in processor time, not what a network gives.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from netfold.cli.bench import format_bytes, format_seconds

WORKERS = (2, 4)
SIZES = ("4KiB", "64KiB", "1MiB", "16MiB", "64MiB", "256MiB")
RUN = (sys.executable, "-c", "from netfold.cli import main; main()", "bench", "allreduce")


def measure(workers: int, rounds: int, file: Path) -> dict[str, Any]:
    """Runs the benchmark; what it prints goes to our output."""
    sizes = [argument for size in SIZES for argument in ("--size", size)]
    options = ["--workers", str(workers), "--rounds", str(rounds), "--json", str(file)]
    subprocess.run([*RUN, *sizes, *options], check=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """One line per number of processes and size, and what it was measured on."""
    first = runs[0]
    loads = ", ".join(f"{run['loadavg'][0]:.1f}" for run in runs)
    about = (
        f"{first['machine']['processor']}, {first['machine']['cores']} cores shared by all "
        f"processes and the switch, kernel {first['kernel']}, torch {first['torch']}, commit "
        f"{first['commit'] or 'unknown'}. Load before each run: {loads}. float32, medians of the "
        "rounds (best round in brackets), the slowest rank's time after a barrier, engines in "
        "turns."
    )
    lines = [
        "# All-reduce on loopback, netfold beside gloo",
        "",
        about,
        "",
        "| processes | size | netfold | gloo | gloo / netfold |",
        "| --: | --: | --: | --: | --: |",
    ]
    lines += [line for run in runs for line in _lines(run)]
    return "\n".join(lines) + "\n"


def _lines(run: dict[str, Any]) -> list[str]:
    by_engine = {(r["engine"], r["bytes"]): r for r in run["results"]}
    return [
        f"| {ratio['workers']} | {format_bytes(ratio['bytes'])} "
        f"| {_times(by_engine['netfold', ratio['bytes']])} "
        f"| {_times(by_engine['gloo', ratio['bytes']])} "
        f"| {ratio['baseline_over_netfold']:.2f} ({ratio['baseline_over_netfold_min']:.2f}) |"
        for ratio in run["ratios"]
    ]


def _times(result: dict[str, Any]) -> str:
    return f"{format_seconds(result['median_s'])} ({format_seconds(result['min_s'])})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="Markdown goes here; else to the terminal")
    parser.add_argument("--json", type=Path, help="keep the numbers in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.json or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [
            measure(workers, options.rounds, folder / f"loopback-{workers}.json")
            for workers in WORKERS
        ]
    text = table(runs)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
