"""The process group in real processes: results, other collectives, DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.cluster import ROOT, Switch, aggregators, outcomes, running_switch
from tests.processes import NETFOLD

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    with running_switch(tmp_path_factory.mktemp("switch")) as found:
        yield found


@pytest.fixture(scope="module", params=["switch", "2 switches", "tree", "shards"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """NETFOLD_SWITCH, for each way to place aggregators."""
    with aggregators(request.param, tmp_path_factory.mktemp("switches")) as found:
        yield found


def test_every_dtype_and_op_is_a_fold_in_rank_order(address: str) -> None:
    """T33, T34, T35, T36: bit for bit, none of it in gloo; integer AVG is refused by name."""
    for line in outcomes("reduce_all", 3, address, arguments=(str(len(address.split() or [""])),)):
        path = "switch" if address else "shards"
        assert line["paths"] == {path: {"collectives": 62, "bytes": ANY, "share": 1.0}}
        assert line["refused"]["code"] == "unsupported"
        assert "all_reduce AVG of int32" in line["refused"]["text"]


def test_fixed_point_keeps_its_bound_and_its_bits(address: str) -> None:
    """T37, T44: the same with any number of aggregators."""
    for line in outcomes("fixed", 3, address, NETFOLD_MODE="fixed32"):
        assert line["same"]
        assert line["within"]
        assert line["average"]
        assert [str(value) for value in line["special"]] == ["nan", "nan", "-inf"]
        assert line["paths"]["switch" if address else "shards"]["collectives"] == 7


def test_layouts_and_bits(address: str) -> None:
    """T32: never silently wrong. T38: nothing to reduce is done at once. T43: the same bits."""
    for line in outcomes("shapes", 3, address):
        assert line["same"]
        assert line["refused"]["code"] == "unsupported"


def test_collectives_groups_and_futures(address: str) -> None:
    """T39, T42, and the table of what a backend must do."""
    assert all(line["ok"] for line in outcomes("collectives", 4, address))


@pytest.mark.parametrize("way", ["offload", "plain"])
def test_ddp_equals_one_process(switch: Switch, way: str) -> None:
    """The plain path (no GSO, GRO or recvmmsg) is kept alive here."""
    offload = "1" if way == "offload" else "0"
    for line in outcomes("train", 2, switch.address, NETFOLD_OFFLOAD=offload):
        assert line["worst"] < 1e-6
        assert line["switch"] >= 5


def test_ipv6(tmp_path: Path) -> None:
    with running_switch(tmp_path, listen="[::1]:0") as switch:
        assert switch.address.startswith("[::1]:")
        for line in outcomes("train", 2, switch.address):
            assert line["worst"] < 1e-6


def test_world_of_one_needs_no_switch() -> None:
    """T39."""
    (line,) = outcomes("train", 1, "")
    assert line["worst"] == 0


def test_groups_listen_on_no_port_of_the_store(switch: Switch) -> None:
    """T07: the store we are given is used; gloo's own ports are the system's choice."""
    for line in outcomes("listen", 2, switch.address):
        assert line["store"] not in line["ports"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_two_gib(switch: Switch) -> None:
    """T40."""
    for line in outcomes("huge", 2, switch.address):
        assert line == {"ends": [3, 3, 3], "same": True}


def test_import_torch_survives_a_name_clash() -> None:
    code = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']='0'\n"
        "import torch.distributed as dist\n"
        "dist.Backend.register_backend('netfold', lambda *a: None, devices=['cpu'])\n"
        "from netfold.autoload import register; register(); print('alive')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "alive" in ran.stdout
    assert "taken" in ran.stderr


def accuracy_of(example: str, *options: str) -> float:
    """Runs one of examples/ on two workers; the accuracy it printed."""
    ran = subprocess.run(
        [*NETFOLD, "run", "--nproc", "2", str(ROOT / "examples" / example), *options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return float(ran.stdout.split("accuracy")[1].split()[0])


def test_example_learns_digits() -> None:
    assert accuracy_of("ddp_digits.py") > 0.9


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason=f"dataset-fashion-mnist: no {FASHION_MNIST}")
def test_example_learns_pictures() -> None:
    assert accuracy_of("cnn_fashion_mnist.py", "--steps", "40") > 0.5
