"""The lab: its links carry and count packets, and nothing of it outlives its owner."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netfold.lab import SWITCH, Lab, LabUnavailable, interface_counters
from netfold.lab.network import WORKER_INTERFACE, port_name
from tests.processes import started

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_allowed")]

HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP

ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7000))
print("ready", flush=True)
while True:
    data, sender = s.recvfrom(65536)
    s.sendto({answer}, sender)
"""
ASK = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
for _ in range({count}):
    s.sendto(bytes({size}), ("{address}", 7000))
    answer = s.recv(65536)
print(answer[:20].decode(errors="replace"))
"""
BURST = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
s.sendto(bytes(20_000), ("{address}", 7001))
"""
NAMESPACE = "import os; print(os.readlink('/proc/self/ns/net'))"


def run(lab: Lab, node: int, script: str) -> str:
    process = lab.popen(node, [sys.executable, "-c", script], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return str(out.decode()).strip()


@contextmanager
def echo(lab: Lab, node: int, answer: str = "data") -> Iterator[None]:
    script = ECHO.format(answer=answer)
    process = lab.popen(node, [sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_packets_are_counted_exactly() -> None:
    """100 packets there and 100 back: on the worker's own port, and on no other."""
    with Lab(3) as lab:
        with echo(lab, SWITCH):
            run(lab, 0, ASK.format(count=100, size=1000, address=lab.address(SWITCH)))
        with echo(lab, 2):
            run(lab, 0, ASK.format(count=50, size=1000, address=lab.address(2)))
        ports = lab.counters(SWITCH)
    seen = {
        rank: (port.rx_packets, port.rx_bytes, port.tx_packets, port.tx_bytes)
        for rank in range(3)
        if (port := ports[port_name(rank)])
    }
    each = 1000 + HEADERS
    assert seen == {
        0: (150, 150 * each, 150, 150 * each),
        1: (0, 0, 0, 0),
        2: (50, 50 * each, 50, 50 * each),
    }


def test_a_burst_is_counted_as_the_packets_it_becomes() -> None:
    with Lab(1) as lab:
        run(lab, 0, BURST.format(address=lab.address(SWITCH)))
        port = lab.counters(SWITCH)[port_name(0)]
    assert (port.rx_packets, port.rx_bytes) == (20, 20 * (1000 + HEADERS))


def test_a_rank_reads_its_own_counters_inside() -> None:
    script = (
        "from netfold.lab import interface_counters as c\n"
        f"print(*sorted(c()), c()[{WORKER_INTERFACE!r}].tx_packets)"
    )
    with Lab(2) as lab:
        with echo(lab, SWITCH):
            run(lab, 1, ASK.format(count=7, size=10, address=lab.address(SWITCH)))
        assert run(lab, 1, script) == f"{WORKER_INTERFACE} lo 7"


def test_packets_larger_than_the_mtu_follow_the_option() -> None:
    """8,000 bytes are 6 packets at MTU 1500 and one at 9000."""
    for mtu, packets in ((1500, 6), (9000, 1)):
        with Lab(1, mtu=mtu) as lab:
            with echo(lab, SWITCH):
                run(lab, 0, ASK.format(count=1, size=8000, address=lab.address(SWITCH)))
            assert lab.counters(SWITCH)[port_name(0)].rx_packets == packets


def test_a_rate_holds() -> None:
    """100 echoes of 1,042 bytes at 4 Mbit/s take 0.2 s less what the shaper's burst lets pass."""
    with Lab(1, rate_bits_per_s=4_000_000) as lab, echo(lab, SWITCH):
        start = time.monotonic()
        run(lab, 0, ASK.format(count=100, size=1000, address=lab.address(SWITCH)))
        assert time.monotonic() - start > 0.15


def test_the_machines_own_network_is_untouched(vanishes: Callable[[str], bool]) -> None:
    before = socket.if_nameindex()
    own = str(Path("/proc/self/ns/net").readlink())
    named = sorted(Path("/run/netns").glob("*"))
    with Lab(2) as lab:
        inside = {run(lab, node, NAMESPACE) for node in (SWITCH, 0, 1)}
        assert len(inside) == 3
        assert own not in inside
        assert socket.if_nameindex() == before
        assert set(interface_counters()) == {name for _, name in before}
    assert all(vanishes(namespace) for namespace in inside)
    assert socket.if_nameindex() == before
    assert sorted(Path("/run/netns").glob("*")) == named


def test_two_labs_never_meet() -> None:
    """Same addresses, two networks: each asks and hears its own switch."""
    with Lab(2) as one, Lab(2) as two:
        with echo(one, SWITCH, "b'one'"), echo(two, SWITCH, "b'two'"):
            ask = ASK.format(count=3, size=10, address=one.address(SWITCH))
            assert run(one, 0, ask) == "one"
            assert run(two, 0, ask) == "two"
        for lab in (one, two):
            assert lab.counters(SWITCH)[port_name(0)].rx_packets == 3


OWNER = f"""
import subprocess, sys
from netfold.lab import Lab, SWITCH
with Lab(2) as lab:
    for node in (SWITCH, 0, 1):
        print(subprocess.run(["true"]) and lab.popen(
            node, [sys.executable, "-c", {NAMESPACE!r}], stdout=subprocess.PIPE
        ).communicate()[0].decode().strip(), flush=True)
    lab.popen(0, ["sleep", "1000"])
    print(lab.rootless, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_owner_leaves_nothing(
    number: signal.Signals, vanishes: Callable[[str], bool]
) -> None:
    """Not even the process that slept inside."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started([sys.executable, "-c", OWNER], **pipes) as owner:
        assert owner.stdout is not None
        inside = [owner.stdout.readline().strip() for _ in range(3)]
        assert owner.stdout.readline()
        assert all(namespace.startswith("net:[") for namespace in inside)
        owner.send_signal(number)
        owner.communicate(timeout=10)
    assert all(vanishes(namespace) for namespace in inside)


def _as_nobody(script: str) -> list[str]:
    """A command that runs `script` without root and without its capabilities."""
    setpriv, python = shutil.which("setpriv"), "/usr/bin/python3"
    if os.geteuid() != 0 or setpriv is None or not Path(python).exists():
        pytest.skip("needs root to stop being it, setpriv, and a Python that all may run")
    drop = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    return [setpriv, *drop, "--inh-caps=-all", "--bounding-set=-all", python, "-c", script]


def _everyones_path() -> dict[str, str]:
    import pyroute2

    import netfold.lab

    folders = [Path(netfold.lab.__file__).parents[2], Path(pyroute2.__file__).parents[1]]
    if any(folder.stat().st_mode & 0o005 != 0o005 for f in folders for folder in (f, *f.parents)):
        pytest.skip("the checkout lies where only its owner may look")
    return {**os.environ, "PYTHONPATH": ":".join(map(str, folders))}


def test_without_root_a_user_namespace_serves() -> None:
    script = f"""
import subprocess, sys
from netfold.lab import Lab, SWITCH
ECHO, ASK = {ECHO.format(answer="b'heard'")!r}, {ASK!r}
with Lab(2) as lab:
    echo = lab.popen(SWITCH, [sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    echo.stdout.readline()
    ask = ASK.format(count=9, size=1000, address=lab.address(SWITCH))
    heard = lab.popen(1, [sys.executable, "-c", ask], stdout=subprocess.PIPE).communicate()[0]
    port = lab.counters(SWITCH)["port1"]
    echo.kill()
    echo.wait()
    print(lab.rootless, heard.decode().strip(), port.rx_packets, port.rx_bytes)
"""
    done = subprocess.run(
        _as_nobody(script),
        env=_everyones_path(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "LabUnavailable" in done.stderr:
        able = subprocess.run([*_as_nobody("")[:-3], "unshare", "-Urn", "true"], check=False)
        assert able.returncode != 0, done.stderr
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.stdout.split() == ["True", "heard", "9", str(9 * (1000 + HEADERS))], done.stderr


def test_what_is_missing_is_said() -> None:
    """User 0 without capabilities may neither make networks nor map itself into a namespace."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root to stop being it, and setpriv")
    script = "from netfold.lab import Lab; Lab(1).__enter__()"
    command = [setpriv, "--inh-caps=-all", "--bounding-set=-all", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "LabUnavailable" in done.stderr
    assert "CAP_SYS_ADMIN" in done.stderr


def test_a_lab_of_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 64 workers"):
        Lab(65)


def test_an_unusable_lab_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The holder ends at once, as where Python cannot start: the owner hears of it."""
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\nexit 3\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    with pytest.raises(LabUnavailable, match="without a word"):
        Lab(1).__enter__()
