"""What all tests share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from netfold.lab import Lab, LabUnavailable

CAP_SYS_ADMIN = 21

# What a shell starts in the background ignores SIGINT, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def lab_allowed() -> None:
    """Skips where this machine allows no network namespaces; who may make them gets no skip."""
    try:
        with Lab(1):
            pass
    except LabUnavailable as reason:
        if may_make_namespaces():
            raise
        pytest.skip(str(reason))


def may_make_namespaces() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)
