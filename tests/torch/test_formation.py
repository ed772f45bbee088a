"""Forming a group: what ranks tell each other, and what users read meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from netfold import defaults
from netfold.errors import Timeout
from netfold.torch import formation
from netfold.torch.formation import Membership


def member(rank: int, size: int) -> Membership:
    return Membership(
        name="world",
        rank=rank,
        size=size,
        ranks=list(range(size)),
        is_world=True,
        timeout=timedelta(seconds=1),
    )


def test_loopback_is_told_only_if_all_ranks_are_on_one_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T01: a switch on this machine is reached through 127.0.0.1, which others cannot reach."""
    monkeypatch.setattr(formation, "_route", lambda host, _port: f"towards {host}")
    for other, told in (("127.0.0.1", "127.0.0.1"), ("192.0.2.7", "towards 192.0.2.7")):
        store = dist.HashStore()
        store.set("address/0", "127.0.0.1")
        store.set("address/1", other)
        meeting = formation._Meeting(store, member(0, 2), 1.0, shards=False)
        assert formation._address_for_peers(meeting, "127.0.0.1") == told
    assert formation._address_for_peers(meeting, "192.0.2.1") == "192.0.2.1"


def test_waiting_says_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T31: a line every JOIN_REPORT_S, then an error with the same ranks."""
    monkeypatch.setattr(defaults, "JOIN_REPORT_S", 0.0)
    meeting = formation._Meeting(dist.HashStore(), member(0, 4), 0.05, shards=False)

    def wait() -> None:
        while True:
            meeting.check(lambda: [2, 3])

    with caplog.at_level("INFO", "netfold"), pytest.raises(Timeout) as caught:
        wait()
    assert caught.value.ranks == (2, 3)
    line = caplog.messages[0]
    assert "waiting for" in line
    assert "2" in line
    assert "3" in line
