"""What users see when something goes wrong, with real processes and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold import defaults
from tests.cluster import Switch, aggregators, outcomes, ranks, running_switch
from tests.processes import NETFOLD, left_alive, started, wait_for_children

LEASE_S = defaults.LEASE_S


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    with running_switch(tmp_path_factory.mktemp("switch")) as found:
        yield found


@pytest.fixture(scope="module", params=["switch", "shards"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """NETFOLD_SWITCH, with a switch and without."""
    with aggregators(request.param, tmp_path_factory.mktemp("switches")) as found:
        yield found


def test_a_killed_worker_is_named_by_all_survivors(address: str) -> None:
    """T13, T18: within the lease and a second; op, sequence, own rank, missing ranks, bytes."""
    with ranks("lose", 3, address, arguments=("kill",)) as members:
        for member in members:
            member.read()
        for own, member in enumerate(members[:2]):
            line = member.read()
            assert line["error"] == "PeerLost"
            assert line["ranks"] == [2]
            assert line["seconds"] <= LEASE_S + 1
            for fact in ("[netfold:peer_lost]", "all_reduce SUM float32[100000]", "#2"):
                assert fact in line["text"]
            assert f"on rank {own}" in line["text"]
            assert "of 400,000 bytes done" in line["text"]
            assert member.read()["seconds"] < 2  # destroy


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_in_a_collective_of_gloo_is_named(address: str, number: signal.Signals) -> None:
    """By all, and neither they nor their end wait for gloo."""
    with ranks("lose_in_gloo", 3, address, arguments=(str(int(number)),)) as members:
        for member in members[:2]:
            line = member.read()
            assert line["error"] == "PeerLost"
            assert line["ranks"] == [2]
            assert line["seconds"] <= LEASE_S + 1
            assert "allgather #2" in line["text"]
            assert member.read()["seconds"] < 2  # destroy
        for member in members[:2]:
            assert member.process.wait(20) == 0


def test_a_rank_that_left_is_named_at_once(address: str) -> None:
    with ranks("lose", 3, address, arguments=("leave",)) as members:
        for member in members:
            member.read()
        for member in members[:2]:
            line = member.read()
            assert line["error"] == "PeerLost"
            assert line["ranks"] == [2]
            assert line["seconds"] < LEASE_S / 2


def test_a_rank_that_slept_beyond_the_lease_hears_that_it_is_gone(address: str) -> None:
    with ranks("lose", 2, address, arguments=("freeze",)) as members:
        for member in members:
            member.read()
        assert members[0].read()["ranks"] == [1]
        members[1].process.send_signal(signal.SIGCONT)
        line = members[1].read()
        assert line["error"] == "PeerLost"
        assert line["ranks"] == [1]
        assert "declared gone" in line["text"]


def test_a_killed_worker_under_ddp(address: str) -> None:
    with ranks("lose_ddp", 2, address) as members:
        line = members[0].read()
        assert line["error"] == "RuntimeError"
        assert "[netfold:peer_lost]" in line["text"]
        assert line["last"] == "peer_lost"


def test_a_dead_switch_is_named_within_the_lease(tmp_path: Path) -> None:
    with (
        running_switch(tmp_path) as switch,
        ranks("lose", 2, switch.address, arguments=("switch",)) as members,
    ):
        for member in members:
            member.read()
        switch.process.kill()
        for member in members:
            member.say("go")
        for member in members:
            line = member.read()
            assert line["error"] == "AggregatorLost"
            assert switch.address in line["text"]
            assert line["seconds"] <= LEASE_S + 1
            assert member.read()["seconds"] < 3  # destroy


@pytest.mark.parametrize("kind", ["numel", "dtype", "op"])
def test_a_disagreeing_rank_makes_all_raise_mismatch(address: str, kind: str) -> None:
    """T11, T12: two ranks and both calls are named; later collectives fail as well."""
    with ranks("disagree", 3, address, arguments=(kind,)) as members:
        lines = [member.read() for member in members]
    texts = set()
    for line in lines:
        assert line["error"] == "Mismatch"
        assert line["later"] == "mismatch"
        assert 2 in line["ranks"]
        assert len(line["ranks"]) == 2
        assert line["seconds"] < 3
        calls = re.findall(r"all_reduce \w+ \w+\[\d+\] #2", line["text"])
        assert len(set(calls)) == 2, line["text"]
        texts.add(tuple(sorted(set(calls))))
    assert len(texts) == 1


def test_a_rank_on_another_path_makes_the_others_raise_mismatch(address: str) -> None:
    """T11: no chunk of it meets theirs; its Heartbeat tells."""
    with ranks("disagree", 3, address, arguments=("path",)) as members:
        lines = [member.read() for member in members]
    for line in lines:
        assert line["error"] == "Mismatch"
        assert 2 in line["ranks"]
        assert "rank 2: broadcast through gloo #2" in line["text"]
        assert line["seconds"] < 3


@pytest.mark.parametrize(("which", "at_s"), [("operation", 0.5), ("wait", 0.7), ("group", 3.0)])
def test_the_nearest_timeout_counts(address: str, which: str, at_s: float) -> None:
    """T19, T20: operation before group; wait() before both. The other rank hears of it."""
    with ranks("out_of_time", 2, address, arguments=(which,)) as members:
        line = members[0].read()
        assert line["error"] == "Timeout"
        assert at_s <= line["seconds"] < at_s + 1.5
        for member in reversed(members):
            member.say("go")
        other = members[1].read()
        assert other["code"] in ("timeout", "aborted")
        assert other["seconds"] < 2


def test_abort_breaks_the_group_for_all_and_is_idempotent(address: str) -> None:
    """T20, T22."""
    with ranks("give_up", 3, address) as members:
        for member in members:
            assert member.read()["code"] == "aborted"
            assert member.read()["seconds"] < 2
            assert member.end() == 0


def test_destroy_with_work_in_flight_returns_promptly(address: str) -> None:
    """T17, T24: dropped Works are finished; held ones end with an error."""
    with ranks("drop", 2, address) as members:
        line = members[0].read()
        assert line["ok"]
        assert line["destroy"]["seconds"] < 2
        assert line["held"]["code"] in ("aborted", "peer_lost")
        assert members[1].read()["ok"]
        members[1].go_on()
        assert [member.end() for member in members] == [0, 0]


def test_two_jobs_on_one_switch(switch: Switch) -> None:
    """T06, T64: side by side, on ports the system chose."""
    with (
        ranks("steps", 2, switch.address, arguments=("200",)) as first,
        ranks("steps", 3, switch.address, arguments=("200",)) as second,
    ):
        members = [*first, *second]
        for member in members:
            assert member.read()["half"]
        for member in members:
            member.go_on()
        for member in members:
            assert member.read()["counters"]["collectives_ok"] == 200
            assert member.end() == 0


def test_a_full_switch_refuses_in_one_sentence(tmp_path: Path) -> None:
    """T64: slots that do not fit are refused to all ranks alike."""
    with running_switch(tmp_path, "--memory", "1KiB") as switch:
        for line in outcomes("form", 2, switch.address):
            assert line["code"] == "refused"
            assert "--memory" in line["text"]


def test_a_missing_rank_ends_forming_in_time(switch: Switch) -> None:
    """T30: and Ctrl-C ends it before."""
    with ranks("form", 3, switch.address, TEST_TIMEOUT_S="3") as members:
        members[2].process.kill()
        for member in members[:2]:
            line = member.read()
            assert line["code"] == "timeout"
            assert line["ranks"] == [2]
            assert line["seconds"] < 7
    with ranks("form", 2, switch.address) as members:
        members[1].process.kill()
        wait_for_cpu_idle(members[0].process.pid)
        members[0].process.send_signal(signal.SIGINT)
        assert members[0].end() != 0


def wait_for_cpu_idle(process: int) -> None:
    """Until it has begun and waits: its processor time, in 10 ms, stands still."""
    spent, deadline = 0, time.monotonic() + 30
    while time.monotonic() < deadline:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        now = int(fields[11]) + int(fields[12])
        if now and now == spent:
            return
        spent = now
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:9", "127.0.0.1:9"), ("nowhere", "NETFOLD_SWITCH"), ("a.invalid:1", "a.invalid")],
)
def test_a_wrong_address_is_one_sentence(address: str, says: str) -> None:
    with ranks("form", 2, address) as members:
        for member in members:
            line = member.read()
            assert line["code"] in ("unreachable", "config")
            assert says in line["text"]
            assert "\n" not in line["text"]
            assert line["seconds"] < LEASE_S + 2


@pytest.mark.parametrize(
    "setting", ["NETFOLD_WINDOW=3", "NETFOLD_JOB=other", "NETFOLD_MODE=fixed32", "NETFOLD_SWITCH="]
)
def test_a_setting_of_one_rank_is_named_by_all(switch: Switch, setting: str) -> None:
    """T31: and nobody waits for the others' patience to end."""
    for line in outcomes("misconfigured", 2, switch.address, arguments=(setting,)):
        assert line["code"] == "config"
        assert setting.partition("=")[0] in line["text"]
        assert line["seconds"] < 10


def test_jobs_whose_names_begin_alike_differ(switch: Switch) -> None:
    """The names were once compared by their first words."""
    settings = {"arguments": ("NETFOLD_JOB=my two",), "NETFOLD_JOB": "my one"}
    for line in outcomes("misconfigured", 2, switch.address, **settings):
        assert line["code"] == "config"
        assert "'my two' here and 'my one' on rank 0" in line["text"]


def test_switch_drains_on_sigterm_and_ends_on_the_second(tmp_path: Path) -> None:
    """T26: the first lets the job finish; the second breaks it with an error that says so."""
    with running_switch(tmp_path) as switch:
        with ranks("steps", 2, switch.address, arguments=("10",)) as members:
            for member in members:
                member.read()
            switch.process.send_signal(signal.SIGTERM)
            for member in members:
                member.go_on()
            for member in members:
                assert member.read()["counters"]["collectives_ok"] == 10
        assert switch.process.wait(20) == 0
    with (
        running_switch(tmp_path) as switch,
        ranks("lose", 2, switch.address, arguments=("switch",)) as members,
    ):
        for member in members:
            member.read()
        assert switch.stop() == 0
        for member in members:
            member.say("go")
        for member in members:
            assert member.read()["code"] == "aggregator_lost"


def test_no_process_stays(switch: Switch) -> None:
    """T26: after a job, and after Ctrl-C, nobody of it is left."""
    with ranks("steps", 2, switch.address, arguments=("4",)) as members:
        pids = [member.process.pid for member in members]
        for member in members:
            member.read()
            member.go_on()
        assert [member.end() for member in members] == [0, 0]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("ranks_work", [False, True], ids=["while torch loads", "while ranks work"])
def test_an_interrupted_run_leaves_no_process(tmp_path: Path, ranks_work: bool) -> None:
    """And shows no traceback of torchrun's."""
    script = tmp_path / "loop.py"
    script.write_text("import time\nwhile True: time.sleep(0.1)\n")
    command = [*NETFOLD, "run", "--nproc", "2", str(script)]
    with started(command, stderr=subprocess.PIPE) as running:
        members = wait_for_children(running.pid, 1)
        if ranks_work:
            members += wait_for_children(members[0], 2)
        else:
            time.sleep(1.0)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said
    assert left_alive(members) == []
