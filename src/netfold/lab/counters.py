"""What the kernel counted: bytes of interfaces, bytes of this process's TCP connections."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class InterfaceCounters:
    """Since the interface was made: bytes with link headers, and packets."""

    rx_bytes: int
    rx_packets: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_dropped: int


def interface_counters(process: int | None = None) -> dict[str, InterfaceCounters]:
    """Counters by interface name in the network namespace of `process` (None: our own).

    /proc/PID/net/dev follows the namespace of the process, as /sys/class/net does not.
    """
    text = Path(f"/proc/{process or os.getpid()}/net/dev").read_text()
    return dict(_parse(line) for line in text.splitlines()[2:])


def _parse(line: str) -> tuple[str, InterfaceCounters]:
    name, _, numbers = line.partition(":")
    fields = [int(number) for number in numbers.split()]
    return name.strip(), InterfaceCounters(
        rx_bytes=fields[0],
        rx_packets=fields[1],
        rx_dropped=fields[3],
        tx_bytes=fields[8],
        tx_packets=fields[9],
        tx_dropped=fields[11],
    )


# Offsets in the kernel's struct tcp_info, which only ever grows at its end.
_TCPI_BYTES_RECEIVED = 128
_TCPI_BYTES_SENT = 200


def tcp_bytes() -> tuple[int, int] | None:
    """(received, sent) payload bytes of this process's TCP connections, or None where the kernel
    does not say."""
    received = sent = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            connection = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # not a socket, or closed meanwhile
            continue
        with connection:
            if connection.type != socket.SOCK_STREAM or connection.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                continue
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) < _TCPI_BYTES_SENT + 8:
            return None
        received += struct.unpack_from("=Q", info, _TCPI_BYTES_RECEIVED)[0]
        sent += struct.unpack_from("=Q", info, _TCPI_BYTES_SENT)[0]
    return received, sent
