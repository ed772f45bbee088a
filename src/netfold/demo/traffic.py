"""What a training sent and received, as near to the wire as this machine lets us count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netfold.lab.counters import InterfaceCounters, interface_counters, tcp_bytes
from netfold.lab.network import WORKER_INTERFACE

HEADER_BYTES = 14 + 20 + 8
"""Ethernet, IPv4 and UDP, of each packet."""
IN_LAB = (
    "interface counters inside each worker's network namespace: every packet with its Ethernet, "
    "IP and UDP or TCP headers, retransmissions and heartbeats included"
)
ON_LOOPBACK = {
    "netfold": "netfold's own counters, plus 42 bytes of Ethernet, IPv4 and UDP header a packet",
    "gloo": "TCP_INFO of each worker's connections: payload bytes, without any header",
}
NOT_MEASURED = "not measured: this kernel does not say"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes received and sent, of one node, up to some moment or between two."""

    rx: int
    tx: int

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(rx=self.rx - earlier.rx, tx=self.tx - earlier.tx)


def rank_traffic(engine: str, *, in_lab: bool) -> Traffic | None:
    """Of this process's rank; None where the machine does not let us count."""
    if in_lab:
        return of_interfaces({WORKER_INTERFACE: interface_counters()[WORKER_INTERFACE]})
    if engine == "netfold":
        return of_engine(_group_counters())
    counted = tcp_bytes()
    return None if counted is None else Traffic(rx=counted[0], tx=counted[1])


def of_interfaces(interfaces: Mapping[str, InterfaceCounters]) -> Traffic:
    """The sum of what interfaces counted."""
    return Traffic(
        rx=sum(counters.rx_bytes for counters in interfaces.values()),
        tx=sum(counters.tx_bytes for counters in interfaces.values()),
    )


def of_engine(counters: Mapping[str, int]) -> Traffic:
    """What an engine counted, in bytes of UDP payload, with the headers below it added."""
    return Traffic(
        rx=counters["bytes_rx"] + HEADER_BYTES * counters["packets_rx"],
        tx=counters["bytes_tx"] + HEADER_BYTES * counters["packets_tx"],
    )


def _group_counters() -> dict[str, int]:
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    counters: dict[str, int] = group._member.endpoint.counters()
    return counters
