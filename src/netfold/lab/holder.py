"""The process that makes a lab's namespaces and keeps them: they vanish when it ends.

    python -m netfold.lab.holder '{"parent": …, "workers": …, …}'

It prints one line of JSON, then sleeps until its standard input ends. Nothing has a name outside:
no /run/netns entry, no interface in the namespace it was started in.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from netfold.lab import namespaces
from netfold.lab.network import WORKER_INTERFACE, port_name, switch_address, worker_address

BRIDGE = "br0"
# Left on, the kernel would count a burst of 64 KiB as one packet with one header.
OFFLOADS = ("tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")
NTF_MASTER, NUD_NOARP, NUD_PERMANENT = 0x04, 0x40, 0x80  # linux/neighbour.h


def mac_address(index: int) -> str:
    """Of worker `index`, or of the switch at −1."""
    return f"02:75:00:00:00:{index + 1:02x}"


def own_network() -> bool:
    """Moves into a network namespace of our own; True: inside a new user namespace."""
    try:
        namespaces.unshare(namespaces.NEW_NETWORK)
        return False
    except PermissionError:
        namespaces.become_root_of_new_user_namespace()
        namespaces.unshare(namespaces.NEW_NETWORK)
        return True


def set_sysctl(name: str, value: int) -> None:
    """In the namespace this thread is in."""
    Path("/proc/sys", name).write_text(str(value))


def quiet_ipv6() -> None:
    """Router solicitations and the like would be counted with a job's packets."""
    for scope in ("default", "all"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            set_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", 1)


def switch_segmentation_off(interface: str) -> None:
    from pyroute2.ethtool.ioctl import IoctlEthtool

    tool = IoctlEthtool(interface)
    try:
        features = tool.get_features()
        for name in OFFLOADS:
            features[name] = False
        tool.set_features(features)
    finally:
        tool.close()


class Maker:
    """Makes the nodes of one lab; the calling thread moves from namespace to namespace."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.workers: int = options["workers"]
        self.mtu: int = options["mtu"]
        self.offload: bool = options["offload"]
        self.rate_bits_per_s: int = options["rate_bits_per_s"]

    def make(self) -> list[int]:
        """Descriptors of the namespaces, the switch's first. This thread ends in the switch's."""
        descriptors = [namespaces.network_descriptor()]
        for _ in range(self.workers):
            namespaces.unshare(namespaces.NEW_NETWORK)
            descriptors.append(namespaces.network_descriptor())
        namespaces.enter(descriptors[0], namespaces.NEW_NETWORK)
        self._make_switch(descriptors[1:])
        for rank, descriptor in enumerate(descriptors[1:]):
            namespaces.enter(descriptor, namespaces.NEW_NETWORK)
            self._finish_worker(rank)
        namespaces.enter(descriptors[0], namespaces.NEW_NETWORK)
        return descriptors

    def _make_switch(self, descriptors: list[int]) -> None:
        from pyroute2 import IPRoute

        quiet_ipv6()
        with IPRoute() as net:
            net.link("set", index=net.link_lookup(ifname="lo")[0], state="up")
            net.link(
                "add",
                ifname=BRIDGE,
                kind="bridge",
                address=mac_address(-1),
                br_stp_state=0,
                br_mcast_snooping=0,
            )
            bridge = net.link_lookup(ifname=BRIDGE)[0]
            for rank, descriptor in enumerate(descriptors):
                self._make_port(net, rank, descriptor, bridge)
            net.addr("add", index=bridge, address=switch_address(), prefixlen=24)
            net.link("set", index=bridge, mtu=self.mtu, state="up")
            for rank in range(self.workers):
                self._make_neighbour(net, bridge, worker_address(rank), mac_address(rank))

    def _make_port(self, net: Any, rank: int, descriptor: int, bridge: int) -> None:
        name = port_name(rank)
        peer = {
            "ifname": WORKER_INTERFACE,
            "mtu": self.mtu,
            "address": mac_address(rank),
            "net_ns_fd": descriptor,
        }
        net.link("add", ifname=name, kind="veth", mtu=self.mtu, peer=peer)
        port = net.link_lookup(ifname=name)[0]
        net.link("set", index=port, master=bridge, state="up")
        # Known from the start, or a first packet would go out of every port.
        net.fdb(
            "replace",
            ifindex=port,
            lladdr=mac_address(rank),
            flags=NTF_MASTER,
            state=NUD_NOARP,
        )
        self._finish_link(net, name, port)

    def _finish_worker(self, rank: int) -> None:
        from pyroute2 import IPRoute

        quiet_ipv6()
        with IPRoute() as net:
            net.link("set", index=net.link_lookup(ifname="lo")[0], state="up")
            index = net.link_lookup(ifname=WORKER_INTERFACE)[0]
            net.addr("add", index=index, address=worker_address(rank), prefixlen=24)
            net.link("set", index=index, state="up")
            self._finish_link(net, WORKER_INTERFACE, index)
            self._make_neighbour(net, index, switch_address(), mac_address(-1))
            for other in range(self.workers):
                if other != rank:
                    self._make_neighbour(net, index, worker_address(other), mac_address(other))

    def _finish_link(self, net: Any, name: str, index: int) -> None:
        if not self.offload:
            switch_segmentation_off(name)
        if self.rate_bits_per_s:
            net.tc(
                "add",
                "tbf",
                index,
                rate=self.rate_bits_per_s // 8,
                burst=max(self.rate_bits_per_s // 8 // 500, 2 * self.mtu, 16 << 10),
                latency="50ms",
            )

    @staticmethod
    def _make_neighbour(net: Any, interface: int, address: str, mac: str) -> None:
        # Without it every node asks all others for addresses, now and then, and is counted.
        net.neigh("replace", dst=address, lladdr=mac, ifindex=interface, state=NUD_PERMANENT)


def refusal(error: Exception) -> str:
    """What this machine lacks, in words."""
    if isinstance(error, ImportError):
        return "pyroute2 is not installed (pip install 'netfold[demo]' brings it)"
    number = getattr(error, "code", None) or getattr(error, "errno", None)
    if number in (errno.EPERM, errno.EACCES):
        return (
            "network namespaces are not allowed: we lack CAP_SYS_ADMIN, and user namespaces "
            "of our own are forbidden or without networks here"
        )
    if number == errno.ENOSPC:
        return "no more namespaces are allowed (see /proc/sys/user/max_*_namespaces)"
    if number == errno.EOPNOTSUPP:
        return f"the kernel lacks veth, bridge or (with a rate) tbf: {error}"
    return f"namespaces could not be made: {error}"


def main() -> int:
    options = json.loads(sys.argv[1])
    namespaces.die_with_parent(options["parent"])
    try:
        import pyroute2  # noqa: F401  before anything is made

        rootless = own_network()
        if rootless:  # the change of credentials cleared it
            namespaces.die_with_parent(options["parent"])
        networks = Maker(options).make()
    except Exception as error:
        print(json.dumps({"refusal": refusal(error)}), flush=True)
        return 1
    user = os.open("/proc/self/ns/user", os.O_RDONLY) if rootless else None
    print(json.dumps({"user": user, "networks": networks}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
