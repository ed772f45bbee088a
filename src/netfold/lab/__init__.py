"""The test bed: network namespaces, processes inside them, and what their interfaces counted."""

from netfold.lab.counters import InterfaceCounters, interface_counters
from netfold.lab.network import SWITCH, Lab, LabUnavailable
from netfold.lab.team import Owner, Team, TeamError

__all__ = [
    "SWITCH",
    "InterfaceCounters",
    "Lab",
    "LabUnavailable",
    "Owner",
    "Team",
    "TeamError",
    "interface_counters",
]
