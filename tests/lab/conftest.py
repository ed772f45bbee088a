"""What tests of the lab look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

VANISH_SECONDS_MAX = 10.0


@pytest.fixture
def vanishes() -> Callable[[str], bool]:
    """Whether nobody is left in the network namespace of this name, or soon nobody is."""

    def check(namespace: str) -> bool:
        deadline = time.monotonic() + VANISH_SECONDS_MAX
        while processes_in(namespace):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return check


def processes_in(namespace: str) -> list[str]:
    """Processes that are in it, or hold a descriptor of it; `namespace` as in net:[4026531840]."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "ns" / "net", *(process / "fd").iterdir()]
        except OSError:  # it ended, or is not ours to look at
            continue
        if any(_target(link) == namespace for link in links):
            found.append(process.name)
    return found


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
