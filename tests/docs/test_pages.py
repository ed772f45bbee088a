"""Documentation says what the code does: README blocks run, settings and defaults are listed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from netfold import config, defaults
from tests.processes import NETFOLD

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line]


def test_every_python_block_of_the_readme_runs(tmp_path: Path) -> None:
    """T74: under `netfold run` with two processes, as the README says."""
    found = blocks("python")
    assert found
    for number, block in enumerate(found):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        command = [*NETFOLD, "run", "--nproc", "2", str(script)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make ")])
def test_every_make_target_of_the_readme_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("netfold ")])
def test_every_flag_of_a_command_in_the_readme_exists(line: str) -> None:
    _, command, *rest = shlex.split(line)
    helped = subprocess.run(
        [*NETFOLD, command, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    for word in rest:
        if word.startswith("--"):
            assert word in helped.stdout


def test_configuration_page_lists_every_variable_and_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, takes in config.VARIABLES.items():
        assert f"| `{name}` | {takes} |" in page
    for name in vars(defaults):
        if name.isupper():
            source = (ROOT / "src" / "netfold" / "defaults.py").read_text()
            value = re.search(rf"^{name}: Final = (.+)$", source, re.MULTILINE)
            assert value is not None
            assert f"| `{name}` | {value[1]} |" in page


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
