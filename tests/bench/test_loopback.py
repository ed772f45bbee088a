"""The table of bench/loopback.py, from numbers of `netfold bench`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from netfold.bench import allreduce


def load_script(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_a_line_for_each_number_of_processes_and_size(root: Path) -> None:
    script = load_script(root / "bench" / "loopback.py")
    lines = script.table([numbers(2), numbers(4)]).splitlines()
    assert lines[-4:] == [
        "| 2 | 4 KiB | 1.00 ms (500 us) | 2.00 ms (1.00 ms) | 2.00 (2.00) |",
        "| 2 | 1 MiB | 1.00 ms (500 us) | 2.00 ms (1.00 ms) | 2.00 (2.00) |",
        "| 4 | 4 KiB | 1.00 ms (500 us) | 2.00 ms (1.00 ms) | 2.00 (2.00) |",
        "| 4 | 1 MiB | 1.00 ms (500 us) | 2.00 ms (1.00 ms) | 2.00 (2.00) |",
    ]
    assert "Load before each run: 0.5, 0.5." in "\n".join(lines)


def numbers(workers: int) -> dict[str, Any]:
    """What `netfold bench allreduce --json` writes, where gloo takes twice as long."""
    results = [
        {
            "case": case,
            "engine": engine,
            "strategy": "switch" if engine == "netfold" else "gloo default",
            "mode": "float32",
            "workers": workers,
            "bytes": size,
            "median_s": seconds,
            "min_s": seconds / 2,
        }
        for case, size in enumerate((4096, 1 << 20))
        for engine, seconds in (("netfold", 0.001), ("gloo", 0.002))
    ]
    return {
        "loadavg": [0.5, 0.4, 0.3],
        "results": results,
        "ratios": allreduce.ratios(results),
        "machine": {"processor": "any", "cores": 2},
        "kernel": "6",
        "torch": "2",
        "commit": "abc",
    }
