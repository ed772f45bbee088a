"""The demo's picture: what both trainings learned, how long it took, what went over the wires."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netfold.demo.training import ENGINES

COLOURS = {"netfold": "#1b6ca8", "gloo": "#e08e2b"}
MEBIBYTE = 1 << 20
GRID = "#d9d9d9"


def draw(result: dict[str, Any], file: Path) -> None:
    """Writes the picture of a netfold.demo/1 result; the file's ending chooses the format."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engines = result["engines"]
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout=layout)
    _losses(axes[0][0], engines)
    _times(axes[0][1], engines)
    _worker_bytes(axes[1][0], engines)
    _switch_bytes(axes[1][1], engines["netfold"], result["workers"])
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    gradient = engines["netfold"]["gradient_bytes"]
    figure.suptitle(
        f"{result['model']}, {result['workers']} workers: "
        f"a gradient of {gradient / MEBIBYTE:.2f} MiB, added by one switch and by gloo",
        fontsize=12,
        fontweight="bold",
    )
    figure.supxlabel(_footnote(result), fontsize=8, color="#555555")
    figure.savefig(file, dpi=140)
    plt.close(figure)


def _losses(panel: Any, engines: dict[str, Any]) -> None:
    # The wide, pale line below stays visible where the narrow one covers it.
    styles = {"gloo": {"linewidth": 6, "alpha": 0.45}, "netfold": {"linewidth": 1.6}}
    for engine, style in styles.items():
        losses = engines[engine]["losses"]
        label = f"{engine} (held-out text: {engines[engine]['val_loss']:.3f})"
        panel.plot(range(1, len(losses) + 1), losses, color=COLOURS[engine], label=label, **style)
    panel.set_title("Training loss, on the same batches")
    panel.set_xlabel("step")
    panel.set_ylabel("nats per character")
    panel.grid(color=GRID, linewidth=0.6)
    panel.legend(frameon=False)


def _times(panel: Any, engines: dict[str, Any]) -> None:
    for place, engine in enumerate(ENGINES):
        numbers = engines[engine]
        total = numbers["iteration_s_median"] * 1e3
        waited = total * numbers["comm_share"]
        panel.bar(place, total - waited, 0.55, color=COLOURS[engine])
        panel.bar(
            place,
            waited,
            0.55,
            bottom=total - waited,
            color="white",
            edgecolor=COLOURS[engine],
            hatch="////",
            linewidth=1.2,
        )
        text = f"{total:.0f} ms\n{numbers['comm_share']:.0%} of it in communication"
        panel.annotate(text, (place, total), (0, 4), textcoords="offset points", ha="center")
    panel.set_xticks(range(len(ENGINES)), ENGINES)
    panel.set_xlim(-0.6, len(ENGINES) - 0.4)
    panel.margins(y=0.18)
    panel.set_title("Time of an iteration (hatched: communication)")
    panel.set_ylabel("milliseconds, median")
    panel.grid(axis="y", color=GRID, linewidth=0.6)


def _worker_bytes(panel: Any, engines: dict[str, Any]) -> None:
    panel.set_title("One worker's wire, one iteration (× the gradient)")
    ways = ("tx_bytes_per_worker_iteration", "rx_bytes_per_worker_iteration")
    gradient_bytes = engines["netfold"]["gradient_bytes"]
    for number, engine in enumerate(ENGINES):
        values = [engines[engine][way] for way in ways]
        places = [way + (number - 0.5) * 0.36 for way in range(len(ways))]
        texts = [_text(value, gradient_bytes) for value in values]
        _bars(panel, places, values, 0.34, texts, color=COLOURS[engine], label=engine)
    panel.axhline(
        gradient_bytes / MEBIBYTE,
        color="#333333",
        linestyle="--",
        linewidth=1,
        label="the gradient",
    )
    panel.set_xticks(range(len(ways)), ["sent", "received"])
    panel.set_ylabel("MiB")
    panel.margins(y=0.22)
    panel.grid(axis="y", color=GRID, linewidth=0.6)
    panel.legend(frameon=False, ncols=3, loc="upper center")


def _switch_bytes(panel: Any, numbers: dict[str, Any], workers: int) -> None:
    panel.set_title(f"The switch, one iteration of netfold, all {workers} ports")
    values = [numbers["switch_rx_bytes_iteration"], numbers["switch_tx_bytes_iteration"]]
    texts = [_text(value) for value in values]
    _bars(panel, [0, 1], values, 0.5, texts, color=COLOURS["netfold"])
    panel.set_xticks([0, 1], ["received", "sent"])
    panel.set_xlim(-0.6, 1.6)
    panel.set_ylabel("MiB")
    panel.margins(y=0.15)
    panel.grid(axis="y", color=GRID, linewidth=0.6)


def _text(value: int | None, unit_bytes: int | None = None) -> str:
    """In MiB, and how many times `unit_bytes` it is."""
    if value is None:
        return "not measured"
    times = "" if unit_bytes is None else f" ({value / unit_bytes:.2f}×)"
    return f"{value / MEBIBYTE:.2f}{times}"


def _bars(
    panel: Any,
    places: Sequence[float],
    values: Sequence[int | None],
    width: float,
    texts: Sequence[str],
    **style: Any,
) -> None:
    heights = [(value or 0) / MEBIBYTE for value in values]
    panel.bar(places, heights, width, **style)
    for place, text, height in zip(places, texts, heights, strict=True):
        panel.annotate(text, (place, height), (0, 3), textcoords="offset points", ha="center")


def _footnote(result: dict[str, Any]) -> str:
    machine = result["machine"]
    sources = {engine: result["engines"][engine]["bytes_source"] for engine in ENGINES}
    where = f"{machine['cores']} cores ({machine['processor']}), {result['network']}"
    versions = f"torch {result['torch']}, kernel {result['kernel']}"
    lines = [f"{result['workers']} processes and a switch on {where}; {versions}"]
    if len(set(sources.values())) == 1:
        lines.append(f"Bytes: {sources['gloo'].partition(':')[0]}, headers included")
    else:
        lines += [f"Bytes of {engine}: {source}" for engine, source in sources.items()]
    return "\n".join(lines)
