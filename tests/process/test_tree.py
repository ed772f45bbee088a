"""Two racks with a switch above: what users see of failures at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from netfold import defaults
from tests.cluster import Switch, outcomes, ranks, running_switch

LEASE_S = defaults.LEASE_S


@dataclass
class Tree:
    """Even ranks are in the first rack, odd ones in the second."""

    root: Switch
    racks: list[Switch]

    @property
    def address(self) -> str:
        return " ".join(rack.address for rack in self.racks)


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("tree")
    with ExitStack() as stack:
        root = stack.enter_context(running_switch(folder))
        above = ("--parent", root.address)
        racks = [stack.enter_context(running_switch(folder, *above)) for _ in range(2)]
        yield Tree(root, racks)


def test_a_killed_worker_is_named_in_both_racks(tree: Tree) -> None:
    with ranks("lose", 4, tree.address, arguments=("kill",)) as members:
        for member in members:
            member.read()
        for member in members[:3]:
            line = member.read()
            assert line["error"] == "PeerLost"
            assert line["ranks"] == [3]
            assert line["seconds"] <= LEASE_S + 1


def test_a_late_rank_is_named_across_racks(tree: Tree) -> None:
    """Rank 2 has added in its own rack, whose switch waits for rank 0."""
    with ranks("miss_one", 4, tree.address, arguments=("0",)) as members:
        for member in members[1:]:
            line = member.read()
            assert line["error"] == "Timeout"
            assert line["ranks"] == [0]


def test_a_dead_rack_is_named_by_itself_and_by_the_others(tree: Tree) -> None:
    with ranks("lose", 4, tree.address, arguments=("switch",)) as members:
        for member in members:
            member.read()
        tree.racks[1].process.kill()
        for member in members:
            member.say("go")
        for rank, member in enumerate(members):
            line = member.read()
            assert line["seconds"] <= LEASE_S + 1
            if rank % 2:
                assert line["error"] == "AggregatorLost"
                assert tree.racks[1].address in line["text"]
            else:
                assert line["error"] == "PeerLost"
                assert set(line["ranks"]) <= {1, 3}


def test_a_dead_root_is_felt_in_all_racks(tree: Tree) -> None:
    with ranks("lose", 4, tree.address, arguments=("switch",)) as members:
        for member in members:
            member.read()
        tree.root.process.kill()
        for member in members:
            member.say("go")
        for member in members:
            line = member.read()
            assert line["error"] == "AggregatorLost"
            assert line["seconds"] <= LEASE_S + 1


def test_groups_of_a_job_pass_one_tree_and_leave_nothing(tree: Tree) -> None:
    """Subgroups too, of one rack and of both."""
    assert all(line["ok"] for line in outcomes("collectives", 4, tree.address))
    for switch in [*tree.racks, tree.root]:
        assert switch.stop() == 0
        kinds = [event["kind"] for event in switch.events()]
        assert kinds.count("group_settled") > 1
        assert kinds.count("group_settled") == kinds.count("group_closed")
