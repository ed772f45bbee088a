"""The one table of defaults. Each is also in docs/configuration.md."""

from __future__ import annotations

from typing import Final

# Where a switch listens unless told otherwise; in no list of well-known services.
SWITCH_PORT: Final = 5117
SWITCH_LISTEN: Final = "0.0.0.0"
# What a job is called on the switch; its random incarnation keeps jobs apart, not its name.
JOB: Final = "netfold"
JOB_NAME_BYTES_MAX: Final = 64

# How float32 sums are computed; nothing less exact is ever chosen silently.
MODE: Final = "float32"

# Without a sign of life for this long a member, or the switch, is dead. Long enough for a
# process that swaps or is stopped by a debugger for a moment.
LEASE_S: Final = 5.0
# Sent by the engine's own thread, whatever Python does. Several fit into a lease, so that losing
# some packets kills nobody.
HEARTBEAT_S: Final = 1.0
# How long forming a group may take: all ranks must have started by then.
JOIN_TIMEOUT_S: Final = 300.0
# While it takes long: how often one line says who is missing.
JOIN_REPORT_S: Final = 10.0
# A rank that is alive but has not contributed for this long gets one line.
LATE_AFTER_S: Final = 10.0
# What closing a group waits for the switch to acknowledge.
CLOSE_LINGER_S: Final = 1.0
# As long a worker's shard waits for the others to leave; then they hear that it is gone.
SHARD_LINGER_S: Final = 5.0

# Before the first round trip is measured, and never below: loopback and LANs answer in far less,
# a busy machine's scheduler does not.
RETRANSMIT_INITIAL_S: Final = 0.020
RETRANSMIT_MIN_S: Final = 0.005

# Chunks in flight per group; the switch grants fewer if its receive buffer holds fewer.
WINDOW_MAX: Final = 128
# Asked of the kernel on both sides; without CAP_NET_ADMIN it grants at most net.core.rmem_max.
RECEIVE_BUFFER_BYTES: Final = 4 << 20
# 0: from the path MTU.
PAYLOAD_BYTES_MAX: Final = 0
# Slot memory a switch may hold for all its groups.
SWITCH_MEMORY_BYTES: Final = 1 << 30

# Python waits in turns this long, to run signal handlers and to say who is late.
WAIT_TURN_S: Final = 1.0
# How often a store is asked for a key while a group forms: at first, and at most.
STORE_POLL_MIN_S: Final = 0.002
STORE_POLL_MAX_S: Final = 0.1
# A rank that could not join stays this long, so that all others can read why from the store,
# which may live in its process.
TROUBLE_LINGER_S: Final = 1.0
# A rank that waits in gloo looks this often whether its group broke.
DELEGATED_TURN_S: Final = 0.2


def nanoseconds(seconds: float) -> int:
    """Seconds as the native module takes them."""
    return int(seconds * 1e9)
