"""A switch that dies and is there again: the job goes on, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Switch, ranks, running_switch


@pytest.mark.parametrize("mode", ["float32", "fixed32"])
def test_a_switch_started_again_within_the_lease_goes_on(tmp_path: Path, mode: str) -> None:
    """Twice, in the middle of collectives; no rank raises, and sums are bitwise right."""
    switch = Switch(tmp_path)
    address = switch.address
    try:
        with ranks("endure", 3, address, NETFOLD_MODE=mode) as members:
            for _ in range(2):
                for member in members:
                    assert member.read()["running"]
                switch.process.kill()
                switch.process.wait()
                switch = Switch(tmp_path, listen=address)
            digests = set()
            for member in members:
                line = member.read()
                assert line["resyncs"] == 2
                digests.add(line["digest"])
                assert member.end() == 0
    finally:
        switch.stop()
    with (
        running_switch(tmp_path) as other,
        ranks("endure", 3, other.address, NETFOLD_MODE=mode) as members,
    ):
        for member in members:
            undisturbed = [member.read() for _ in range(3)]
            digests.add(undisturbed[-1]["digest"])
    assert len(digests) == 1
