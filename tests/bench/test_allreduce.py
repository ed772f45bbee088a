"""The benchmark: what its numbers mean, its JSON, and its errors."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from netfold.bench import allreduce
from netfold.cli.bench import format_bytes, format_seconds
from tests.processes import NETFOLD, left_alive, started, wait_for_children

RUN = [*NETFOLD, "bench", "allreduce"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def entry(case: int, engine: str, size: int, mode: str, seconds: float) -> dict[str, Any]:
    return {
        "case": case,
        "engine": engine,
        "strategy": "switch" if engine == "netfold" else "gloo default",
        "mode": mode,
        "workers": 2,
        "bytes": size,
        "median_s": seconds,
        "min_s": seconds / 2,
    }


def test_a_ratio_above_one_says_that_we_are_faster() -> None:
    results = [
        entry(0, "netfold", 4096, "fixed32", 0.5),
        entry(0, "gloo", 4096, "float32", 2.0),
        entry(1, "netfold", 4096, "float32", 1.0),  # nothing to compare with
    ]
    assert allreduce.ratios(results) == [
        {
            "bytes": 4096,
            "mode": "fixed32",
            "strategy": "switch",
            "workers": 2,
            "baseline": "gloo",
            "baseline_mode": "float32",
            "baseline_over_netfold": 4.0,
            "baseline_over_netfold_min": 4.0,
        }
    ]


def test_an_iteration_is_as_slow_as_its_slowest_rank() -> None:
    assert allreduce.slowest_median([[1.0, 5.0, 9.0], [3.0, 1.0, 1.0]]) == 5.0


def test_small_sizes_run_more_often() -> None:
    counts = [allreduce.iterations_of(1 << power) for power in range(10, 30)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 20
    assert counts[-1] == 1


@pytest.mark.parametrize(
    ("count", "text"), [(4096, "4 KiB"), (1 << 30, "1 GiB"), (3 << 20, "3 MiB"), (1000, "1000 B")]
)
def test_bytes_are_written_exactly(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_seconds_are_written_in_their_unit() -> None:
    assert [format_seconds(s) for s in (0.00005, 0.25, 3.0)] == ["50 us", "250.00 ms", "3.00 s"]


def test_the_json_holds_what_was_measured(tmp_path: Path) -> None:
    """Two sizes, two modes, both engines, in turns, with sums verified by every rank."""
    file = tmp_path / "bench.json"
    sizes = ("--size", "4KiB", "--size", "1MiB")
    modes = ("--mode", "float32", "--mode", "int64")
    done = bench("--workers", "2", *sizes, *modes, "--rounds", "5", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["schema"] == "netfold.bench/1"
    assert len(found["loadavg"]) == 3
    assert {"machine", "kernel", "torch", "commit"} <= found.keys()
    cases = {(r["engine"], r["strategy"], r["mode"], r["bytes"]) for r in found["results"]}
    assert cases == {
        (engine, strategy, mode, size)
        for engine, strategy in (("netfold", "switch"), ("gloo", "gloo default"))
        for mode in ("float32", "int64")
        for size in (4096, 1 << 20)
    }
    for result in found["results"]:
        assert result["workers"] == 2
        assert len(result["rounds_s"]) == 5
        assert min(result["rounds_s"]) == result["min_s"] <= result["median_s"]
        assert result["algbw_bytes_per_s"] == result["bytes"] / result["median_s"]
    assert len(found["ratios"]) == 4
    for ratio in found["ratios"]:
        assert ratio["baseline_mode"] == ratio["mode"]
        assert ratio["baseline_over_netfold"] > 0


def test_a_switch_that_is_not_there_is_one_sentence() -> None:
    done = bench("--workers", "2", "--size", "4KiB", "--switch", "127.0.0.1:9")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.5, 5.0], ids=["while ranks start", "while they measure"])
def test_an_interrupted_run_leaves_no_process(seconds: float, number: signal.Signals) -> None:
    command = [*RUN, "--workers", "2", "--size", "64MiB", "--rounds", "1000"]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        members = wait_for_children(running.pid, 3)
        time.sleep(seconds)
        running.send_signal(number)
        _, said = running.communicate(timeout=20)
    assert len(members) == 3  # a switch and two ranks
    assert running.returncode != 0
    assert "Traceback" not in said
    assert left_alive(members) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "4KB"], "--size='4KB'"),
        (["--size", "4097"], "no whole number of float32"),
        (["--workers", "1"], "--workers=1"),
        (["--rounds", "2"], "--rounds=2"),
        (["--size", "100000GiB"], "choose a smaller size"),
        (["--switch", "nowhere"], "--switch='nowhere'"),
        (["--json", "/no/such/folder/b.json"], "/no/such/folder"),
        (["--mode", "float8"], "float8"),
        (["--sizes", "4KiB"], "--sizes"),
    ],
)
def test_a_wrong_flag_is_one_sentence(arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
