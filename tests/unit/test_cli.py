"""What the command says of wrong flags."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.processes import NETFOLD


def netfold(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NETFOLD, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "127.0.0.1:0", "--port-file", "/no/such/folder/p"), "--port-file=/no/such"),
        (("--listen", "nowhere.invalid:5117"), "check --listen"),
        (("--listen", "192.0.2.1:5117"), "choose another --listen"),
        (("--memory", "9999999TiB"), "--memory='9999999TiB'"),
        (("--memory", "999999999GiB"), "no machine has that much"),
        (("--secret-file", "/no/such/file"), "--secret-file"),
    ],
)
def test_a_wrong_flag_of_the_switch_is_one_sentence(arguments: tuple[str, ...], says: str) -> None:
    done = netfold("switch", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_follows_the_script_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text("import sys; print(sys.argv[1:])")
    done = netfold("run", "--nproc", "1", str(script), "--nproc", "3", "--", "-m", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--nproc', '3', '--', '-m', 'x']"


def test_without_a_command_it_shows_its_help() -> None:
    done = netfold()
    assert "switch" in done.stdout
    assert done.stderr == ""
