"""The native module: engines driven over UDP, the simulated net, and small functions for tests.

All times are integer nanoseconds, all sizes bytes. Blocking calls release the GIL and sleep while
they wait. They return early with a "nothing yet" value when a signal arrived, and every 100 ms
without one (another thread may have taken the signal), so that the caller lets Python run its
handlers and calls again.
"""

from typing import Final, final

NANOS_FOREVER: Final[int]

@final
class Endpoint:
    """One member of one group: worker engine, UDP socket and I/O thread.

    Raises OSError when the socket cannot be opened or the address is unreachable.
    """

    def __init__(
        self,
        *,
        host: str,  # numeric IPv4 or IPv6 address of the only switch
        port: int,  # 0: `host` is our own address, and connect() names the aggregators
        job: str,
        incarnation: int,  # u64
        key: bytes,  # 16 bytes
        group: int,  # u64
        rank: int,
        size: int,
        secret: bytes | None = None,  # 16 bytes
        payload_bytes_max: int = 0,  # 0: from the path MTU
        window_max: int = 128,
        receive_buffer_bytes: int = 4 << 20,  # asked for; what is granted is in `path`
        offload: bool = True,  # GSO, GRO, recvmmsg; False: the plain poll path
        lease_ns: int = ...,
        heartbeat_ns: int = ...,
        retransmit_initial_ns: int = ...,
        retransmit_min_ns: int = ...,
        late_after_ns: int = ...,
        bind_device: str = "",  # interface to send from; "" lets the route decide
        shard: bool = False,  # serves as one of the group's aggregators
    ) -> None: ...
    def connect(self, aggregators: list[tuple[str, int, int]]) -> None:
        """Names the group's aggregators, the same on all members: numeric host, port, and the rank
        whose shard it is or -1. Once, where the constructor was given no port."""
    @property
    def port(self) -> int:
        """Where this endpoint is to be reached."""
    def join(self, timeout_ns: int) -> str:
        """Waits until the group is settled: "settled", "refused", "waiting" (the time is up, or a
        signal came), "unreachable" (nothing at the address: port refused), "silent" (no answer for
        a lease), "lost" (the switch answered before and is silent now)."""
    def submit(
        self,
        pointer: int,
        elements: int,
        dtype: int,
        op: int,
        mode: int,
        tensor_dtype: int,
        timeout_ns: int,
        deferred: bool,
    ) -> int:
        """Starts an all-reduce in place over `elements` at `pointer`, which stays valid until the
        outcome. Returns its sequence number in the group (from 1). `tensor_dtype`: what the
        application reduces, where `dtype` is what it was widened to; ranks must agree on it.
        `deferred`: the caller will wait() at once and drives the engine itself, so the I/O thread
        is not woken. Raises ValueError for an op, dtype and mode that no kernel has."""
    def skip(self, fingerprint: int) -> int:
        """A collective that another path carries takes its sequence number; `fingerprint` (u64)
        is what ranks must agree on."""
    def wait(self, sequence: int, timeout_ns: int) -> int:
        """0 not done (time is up or a signal came), 1 done, 2 failed: see failure()."""
    def test(self, sequence: int) -> int:
        """As wait() with no time at all."""
    def release(self, sequence: int) -> None:
        """Forgets the outcome of a collective; wait() and test() on it raise KeyError after."""
    def watch(self, sequence: int) -> None:
        """Asks for the collective to be reported by next_watched() once it has its outcome."""
    def next_watched(self, timeout_ns: int) -> list[int]:
        """Blocks for collectives asked for by watch(); empty: time is up, a signal, or closed."""
    def bytes_done(self, sequence: int) -> int: ...
    def failure(self) -> Failure | None:
        """Why the group is broken, or None. Once set it stays as it is."""
    def refusal(self) -> tuple[int, int, int] | None:
        """(reason, wire version of the aggregator, detail) after join() said "refused"."""
    def joined_ranks(self) -> int:
        """Bitmap of the members the aggregator has seen."""
    def late(self) -> list[tuple[int, int, list[int]]]:
        """Since the last call: (sequence, bitmap of missing ranks, per-rank last collective)."""
    def abort(self) -> None:
        """Breaks the group on all members; idempotent."""
    def close(self, linger_ns: int = ...) -> None:
        """Leaves the group, stops the thread, closes the socket; pending collectives fail with
        cause ABORT. Idempotent, bounded by linger_ns, callable in any state and from any thread."""
    def counters(self) -> dict[str, int]: ...
    def path(self) -> dict[str, int | str | bool]:
        """What is in use: peer, local, payload_bytes, window, stream, epoch, path_mtu,
        receive_buffer_bytes, send_buffer_bytes, gso, gro, round_trip_ns, kernel_set, ipv6."""
    @property
    def state(self) -> str: ...

@final
class Failure:
    """Why a group is broken; the fields of core/control.h Breakage."""

    cause: int
    ranks: int
    added: int
    chunk: int
    epoch: int
    collective: int
    rank_a: int
    rank_b: int
    collective_a: int
    collective_b: int
    fingerprint_a: int
    fingerprint_b: int

@final
class SwitchServer:
    """A switch: engine, socket and thread. Raises OSError when the port is taken."""

    def __init__(
        self,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        secret: bytes | None = None,
        window_max: int = 128,
        receive_buffer_bytes: int = 4 << 20,
        memory_bytes_max: int = 1 << 30,
        lease_ns: int = ...,
        offload: bool = True,
        node: int = 0,
        parent_host: str = "",  # numeric, of the switch above; none: this is the root
        parent_port: int = 0,
    ) -> None: ...
    @property
    def port(self) -> int: ...
    def wait(self, timeout_ns: int) -> bool:
        """Sleeps until the thread ended (True), an event can be read, the time is up or a signal
        came (False)."""
    def events(self) -> list[dict[str, int | str]]:
        """Since the last call: {"kind": "group_settled" | "group_broken" | "group_closed" |
        "member_refused", "job": …, "group": …, …fields of core/switch.h SwitchEvent}."""
    def drain(self) -> None:
        """Takes no new groups and ends when those there have left. Idempotent."""
    def stop(self) -> None:
        """Breaks all groups, tells the members, ends within a second; joins the thread."""
    def counters(self) -> dict[str, int]: ...
    def path(self) -> dict[str, int | str | bool]: ...

def simulate(
    seed: int,
    *,
    workers: int = 0,  # 0 in every option: drawn from the seed
    collectives: int = 0,
    faults: str = "",  # comma list, "" drawn from the seed, "none"
    trace: bool = False,
) -> dict[str, int | str | bool]:
    """One run of the simulated net. {"ok", "error", "workers", "events", "virtual_ns", "digest",
    "faults", "outcome", "trace", …counters}."""

def crc32c(data: bytes, previous: int = 0) -> int: ...
def siphash(key: bytes, data: bytes) -> int: ...
def seal_packet(fields: dict[str, int], payload: bytes, key: bytes | None) -> bytes:
    """Header fields by their wire.toml names and a payload to a sealed datagram."""

def decode_packet(datagram: bytes, key: bytes | None) -> tuple[str, dict[str, int]]:
    """("ok" | "foreign" | "version" | "malformed" | "crc" | "tag", header fields)."""

def slot_add(
    heads: list[dict[str, int]], stream: int, chunk: int, member: int, target: int, slots: int
) -> tuple[str, list[dict[str, int]]]:
    """slot.h on the two heads of a slot: (verdict, heads afterwards)."""

def slot_probe(
    heads: list[dict[str, int]], stream: int, chunk: int, member: int, slots: int
) -> str: ...
def fold(op: int, dtype: int, accumulator: bytes, addend: bytes, kernel_set: str = "") -> bytes: ...
def kernel_sets() -> list[str]:
    """The kernel sets this machine can run, best first."""
