"""The demo's training: right gradients, equal losses, honest bytes, and its JSON."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from netfold.demo import traffic
from netfold.demo.model import CharacterGPT, Shape, loss_of
from netfold.demo.text import batch, encode, load_text
from netfold.demo.training import Options, Progress, Record, summarise, train
from netfold.lab import Lab, interface_counters
from netfold.lab.counters import tcp_bytes
from tests.processes import NETFOLD, left_alive, started, wait_for_children

RUN = [*NETFOLD, "demo"]
SMALL = {"context": 16, "layers": 1, "heads": 2, "width": 32}
EPSILON = 2.0**-23


def single_process_gradient(options: Options, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Of the first step's whole batch, in one process."""
    text = load_text()
    torch.manual_seed(options.seed)
    model = CharacterGPT(Shape(characters=len(text.alphabet), **options.shape)).to(dtype)
    everybody = batch(
        text.train,
        seed=options.seed,
        step=0,
        sequences=options.sequences * options.workers,
        length=options.shape["context"],
    )
    loss_of(model, everybody).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("engine", ["netfold", "gloo"])
def test_the_first_gradient_is_the_single_process_one(engine: str, tmp_path: Path) -> None:
    """Against float64 as the truth, the distributed gradient of each tensor is off by no more
    than a few times what one process's own float32 rounding is off by."""
    file = tmp_path / "gradient.pt"
    options = Options(workers=3, steps=8, sequences=2, shape=SMALL, first_gradient_file=str(file))
    steps: list[Progress] = []
    train(engine, options, None, steps.append)
    assert [progress.step for progress in steps] == list(range(8))
    distributed = torch.load(file)
    truth = single_process_gradient(options, torch.float64)
    rounded = single_process_gradient(options, torch.float32)
    assert distributed.keys() == truth.keys()
    for name, exact in truth.items():
        own = torch.linalg.vector_norm(rounded[name].double() - exact)
        off = torch.linalg.vector_norm(distributed[name].double() - exact)
        assert off <= 4 * own + EPSILON * torch.linalg.vector_norm(exact), name


def test_both_engines_train_the_same_model() -> None:
    options = Options(workers=2, steps=10, sequences=2, shape=SMALL)
    found = {engine: train(engine, options, None, lambda _: None) for engine in ("netfold", "gloo")}
    assert found["netfold"]["losses"] == pytest.approx(found["gloo"]["losses"], rel=1e-4)
    assert found["netfold"]["val_loss"] == pytest.approx(found["gloo"]["val_loss"], rel=0.01)
    assert found["netfold"]["tensor_bytes_by_path"]["switch"] > 0


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.usefixtures("lab_allowed")
def test_bytes_in_the_lab_are_those_of_the_algorithm() -> None:
    """Gloo's ring of 4 sends 1.5 times the gradient, netfold once; headers come on top."""
    options = Options(workers=4, steps=6, warmup=2, sequences=1, shape={"context": 16})
    with Lab(4) as lab:
        gloo = train("gloo", options, lab, lambda _: None)
        assert 1.5 <= ratio(gloo) < 1.65
        ours = train("netfold", options, lab, lambda _: None)
    assert 1.0 < ratio(ours) <= 1.1
    assert ours["switch_rx_bytes_iteration"] == pytest.approx(
        4 * ours["tx_bytes_per_worker_iteration"], rel=0.01
    )
    assert ours["switch_tx_bytes_iteration"] == pytest.approx(
        4 * ours["rx_bytes_per_worker_iteration"], rel=0.01
    )


def ratio(numbers: dict[str, Any]) -> float:
    return float(numbers["tx_bytes_per_worker_iteration"] / numbers["gradient_bytes"])


def test_batches_depend_on_seed_and_step_only() -> None:
    text = encode("in the beginning " * 100)
    first, again, next_step, other_seed = (
        batch(text.train, seed=seed, step=step, sequences=4, length=8)
        for seed, step in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert first.shape == (4, 9)
    assert torch.equal(first, again)
    assert not torch.equal(first, next_step)
    assert not torch.equal(first, other_seed)


def test_validation_text_is_held_out() -> None:
    text = encode("".join(chr(ord("a") + index % 26) for index in range(1000)))
    assert len(text.train) == 950
    assert len(text.validation) == 50


def test_engine_counters_get_their_headers() -> None:
    counters = {"bytes_rx": 1000, "packets_rx": 1, "bytes_tx": 500, "packets_tx": 2}
    assert traffic.of_engine(counters) == traffic.Traffic(rx=1042, tx=584)


def test_only_steady_steps_and_slowest_ranks_count() -> None:
    """Two ranks, six steps, of which two are warm-up; an iteration with nobody to wait for takes
    half as long."""
    ending = {"val_loss": 2.0, "traffic": {"tx": 110.0, "rx": 120.0}, "paths": {"switch": 600}}
    record = Record(
        losses={step: [3.0, 1.0] for step in range(6)},
        iterations={step: [0.1, 9.0 if step < 2 else 0.4] for step in range(6)},
        probes={2: [0.1, 0.2], 5: [0.2, 0.1]},
        endings={0: ending, 1: {**ending, "val_loss": 2.2}},
        about={"gradient_bytes": 100, "torch_version": "2"},
        switch={"begin": traffic.Traffic(rx=80, tx=0), "end": traffic.Traffic(rx=880, tx=960)},
    )
    options = Options(workers=2, steps=6, warmup=2)
    found = summarise("netfold", options, record, in_lab=True)
    assert found["val_loss"] == pytest.approx(2.1)
    assert found["iterations"] == 6
    assert found["iteration_s_median"] == 0.4
    assert found["comm_share"] == pytest.approx(0.5)
    assert (found["tx_bytes_per_worker_iteration"], found["rx_bytes_per_worker_iteration"]) == (
        110,
        120,
    )
    assert (found["switch_rx_bytes_iteration"], found["switch_tx_bytes_iteration"]) == (200, 240)
    assert found["bytes_source"] == traffic.IN_LAB
    assert found["losses"] == [2.0] * 6
    gloo = summarise("gloo", options, record, in_lab=False)
    assert gloo["switch_rx_bytes_iteration"] is None
    assert gloo["bytes_source"] == traffic.ON_LOOPBACK["gloo"]


def test_bytes_nobody_counted_are_none_and_said_so() -> None:
    ending = {"val_loss": 2.0, "traffic": {"tx": None, "rx": None}, "paths": {}}
    record = Record(
        losses={0: [1.0], 1: [1.0]},
        iterations={0: [1.0], 1: [1.0]},
        probes={1: [1.0]},
        endings={0: ending},
        about={"gradient_bytes": 100, "torch_version": "2"},
    )
    found = summarise("gloo", Options(workers=1, steps=2, warmup=1), record, in_lab=False)
    assert found["tx_bytes_per_worker_iteration"] is None
    assert found["bytes_source"] == traffic.NOT_MEASURED


def test_tcp_bytes_are_those_of_this_process() -> None:
    before = tcp_bytes()
    if before is None:
        pytest.skip("this kernel's tcp_info has no byte counts")
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            client.sendall(bytes(1000))
            assert accepted.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            received, sent = tcp_bytes() or (0, 0)
    assert (received - before[0], sent - before[1]) == (1000, 1000)


def test_interface_counters_name_this_machines_interfaces() -> None:
    assert "lo" in interface_counters()


@pytest.mark.slow
def test_the_json_and_the_picture(tmp_path: Path) -> None:
    numbers, picture = tmp_path / "demo.json", tmp_path / "demo.png"
    options = ["--steps", "10", "--workers", "2", "--json", str(numbers), "--picture", str(picture)]
    done = subprocess.run(
        [*RUN, *options], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(numbers.read_text())
    assert found["schema"] == "netfold.demo/1"
    keys = {
        "val_loss",
        "iterations",
        "iteration_s_median",
        "comm_share",
        "gradient_bytes",
        "tx_bytes_per_worker_iteration",
        "rx_bytes_per_worker_iteration",
        "switch_rx_bytes_iteration",
        "switch_tx_bytes_iteration",
        "bytes_source",
    }
    for engine in ("netfold", "gloo"):
        assert keys <= found["engines"][engine].keys()
        assert len(found["engines"][engine]["losses"]) == 10
    assert found["engines"]["gloo"]["switch_rx_bytes_iteration"] is None
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """Neither of the training nor, where there is one, of the lab."""
    least = 3  # a switch and two ranks; in a lab its holder too
    command = [*RUN, "--workers", "2", "--picture", str(tmp_path / "demo.png")]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        members = wait_for_children(running.pid, least)
        time.sleep(6.0)
        members += wait_for_children(running.pid, least)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    assert len(set(members)) >= least
    assert running.returncode != 0
    assert "Traceback" not in said
    assert left_alive(members) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "3"], "--steps=3"),
        (["--workers", "1"], "--workers=1"),
        (["--picture", "a.gif"], "a.gif"),
        (["--json", "/no/such/folder/d.json"], "/no/such/folder"),
        (["--lab", "maybe"], "maybe"),
    ],
)
def test_a_wrong_flag_is_one_sentence(arguments: list[str], said: str) -> None:
    done = subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
