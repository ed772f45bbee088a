"""The simulated net: some hundred seeds, kept ones, and that a seed is a run.

10,000 seeds: `python -m netfold.sim --seeds 0:10000 --jobs 2`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from netfold.sim.seeds import failure_text, run_seed

# Each failed once. 121: an outcome of the odd rank; 760: an abort behind a new address;
# 2204: a rank that gave up before it was in the group; 20782: chunks shifted by a rank that skips;
# 27937: replies to an address that a NAT took away.
KEPT = (121, 176, 760, 2158, 2204, 3942, 5281, 20782, 27937, 137803)


def check(seed: int, **options: object) -> None:
    report = run_seed(seed, **options)  # type: ignore[arg-type]
    assert report["ok"], failure_text(report)


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_hundred_seeds(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.parametrize("seed", KEPT)
def test_kept_seed(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
def test_every_size_of_group(workers: int) -> None:
    for seed in range(20):
        check(seed, workers=workers)


ALONE = (
    "none loss burst dup,reorder corrupt late freeze frozen death timeout abort mismatch quit"
    " rebind forge double drain switch-freeze switch-death partition loss,dup,reorder,corrupt,death"
)


@pytest.mark.parametrize("faults", ALONE.split())
def test_each_fault_alone(faults: str) -> None:
    for seed in range(30):
        check(seed, faults=faults)


def test_a_fault_is_really_there() -> None:
    """A simulated net without faults would find nothing."""
    counters = {
        "lost": "loss",
        "duplicated": "dup",
        "reordered": "reorder",
        "corrupted": "corrupt",
        "bad_crc": "corrupt",
        "forged": "forge",
    }
    for counter, fault in counters.items():
        assert sum(run_seed(seed, faults=fault)[counter] for seed in range(20)) > 0, counter
        assert sum(run_seed(seed, faults="none")[counter] for seed in range(20)) == 0, counter


def test_a_seed_is_a_run() -> None:
    for seed in range(40):
        first, again = run_seed(seed), run_seed(seed)
        assert first == again
    assert len({run_seed(seed)["digest"] for seed in range(40)}) == 40


def test_the_command_runs_seeds_and_says_so() -> None:
    command = [sys.executable, "-m", "netfold.sim", "--seeds"]
    ran = subprocess.run([*command, "0:120", "--jobs", "2"], capture_output=True, check=False)
    assert ran.returncode == 0
    assert b"120 seeds" in ran.stdout
    wrong = subprocess.run([*command, "7"], capture_output=True, check=False)
    assert wrong.returncode == 2
    assert b"expected two numbers" in wrong.stderr
