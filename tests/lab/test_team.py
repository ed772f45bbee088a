"""Teams of processes: messages, failures with last words, and nobody left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netfold.lab import Team, TeamError
from tests.processes import alive, left_alive, started

# Members are modules; these stand in for real ones.
MEMBERS = {
    "parrot": """
from netfold.lab import Owner
owner = Owner()
print("this is noise, not a message")
while True:
    owner.send(heard=owner.receive())
""",
    "failing": """
import sys
from netfold.lab import Owner
Owner().receive()
sys.exit("the disk is full")
""",
    "deaf": """
import signal, time
from netfold.lab import Owner
Owner().send(alive=True)
time.sleep(1000)
""",
}


@pytest.fixture(autouse=True)
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MEMBERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def test_messages_go_both_ways() -> None:
    with Team() as team:
        for name in ("one", "two"):
            team.start(name, "parrot", node=0)
            team.send(name, {"name": name})
        assert team.expect("two", "heard", 30) == {"name": "two"}
        assert team.expect("one", "heard", 30) == {"name": "one"}


def test_a_failing_member_is_named_with_its_last_words() -> None:
    with Team() as team:
        other = team.start("other", "parrot", node=0)
        team.start("rank 3", "failing", node=0)
        team.send("rank 3", {})
        with pytest.raises(TeamError, match=r"rank 3 ended early \(status 1\)\nthe disk is full"):
            team.next_event(30)
    assert not alive(other)


def test_a_killed_member_is_named_with_its_signal() -> None:
    with Team() as team:
        process = team.start("rank 0", "deaf", node=0)
        assert team.next_event(30).message == {"alive": True}
        os.kill(process, signal.SIGKILL)
        with pytest.raises(TeamError, match=r"rank 0 ended early \(SIGKILL\)"):
            team.next_event(30)


def test_silence_is_an_error_that_names_who() -> None:
    with Team() as team:
        team.start("rank 0", "parrot", node=0)
        with pytest.raises(TeamError, match="no word for 0 s from rank 0"):
            team.next_event(0.1)


def test_a_deaf_member_is_killed_when_an_error_ends_the_team() -> None:
    started = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), Team() as team:
        process = team.start("rank 0", "deaf", node=0)
        team.next_event(30)
        raise KeyboardInterrupt
    assert not alive(process)
    assert time.monotonic() - started < 4.0  # without the patience of a good end


def test_members_die_with_a_killed_owner() -> None:
    script = """
import sys
from netfold.lab import Team
team = Team()
print(team.start("rank 0", "deaf", node=0), flush=True)
team.next_event(30)
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        member = int(owner.stdout.readline())
        assert owner.stdout.readline() == "ready\n"
        assert alive(member)
        owner.kill()
        owner.communicate(timeout=10)
    assert left_alive([member]) == []
