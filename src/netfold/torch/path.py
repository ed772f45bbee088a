"""Which path collectives took and why: counted always, said once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from netfold._wire import Mode

SWITCH: Final = "switch"  # added in the network
SHARDS: Final = "shards"  # added by shards on the workers' own hosts
GLOO: Final = "gloo"  # carried by the inner backend
LOCAL: Final = "local"  # nothing to send: a group of one, an empty tensor

_lock = threading.Lock()
_open: list[Usage] = []
_closed: Usage


class Usage:
    """What one group's collectives used."""

    def __init__(self, name: str, ranks: Sequence[int], against_ring: float | None = None) -> None:
        self.name = name
        self.against_ring = against_ring  # expected speed over a ring's, at best
        self.ranks = list(ranks)  # global
        self.collectives: Counter[str] = Counter()  # by path
        self.bytes: Counter[str] = Counter()  # by path: of the tensors, not of packets
        self.reasons: Counter[str] = Counter()  # why not the switch

    def count(self, path: str, size_bytes: int, reason: str = "") -> None:
        """One collective more."""
        with _lock:
            self.collectives[path] += 1
            self.bytes[path] += size_bytes
            if reason:
                self.reasons[reason] += 1

    def summary(self) -> dict[str, Any]:
        """Counts, bytes and shares by path."""
        total = sum(self.bytes.values())
        paths = {
            path: {
                "collectives": self.collectives[path],
                "bytes": self.bytes[path],
                "share": self.bytes[path] / total if total else 0.0,
            }
            for path in sorted(self.collectives)
        }
        return {"paths": paths, "reasons": dict(self.reasons)}

    def add(self, other: Usage) -> None:
        """Takes over what `other` counted."""
        self.collectives.update(other.collectives)
        self.bytes.update(other.bytes)
        self.reasons.update(other.reasons)


_closed = Usage("closed groups", [])


def open_usage(name: str, ranks: Sequence[int], against_ring: float | None) -> Usage:
    """Counters for a new group, seen by report()."""
    usage = Usage(name, ranks, against_ring)
    with _lock:
        _open.append(usage)
    return usage


def close_usage(usage: Usage) -> None:
    """The group is gone: its counts go into the total of all closed ones. Idempotent."""
    with _lock:
        if usage in _open:
            _open.remove(usage)
            _closed.add(usage)


def report() -> dict[str, Any]:
    """See netfold.report()."""
    with _lock:
        total = Usage("all", [])
        for usage in [*_open, _closed]:
            total.add(usage)
        groups = [
            {
                "name": u.name,
                "ranks": u.ranks,
                "expected_over_ring": u.against_ring,
                **u.summary(),
            }
            for u in _open
        ]
        result = {**total.summary(), "groups": groups}
    result["text"] = _text(result)
    return result


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{path}: {used['collectives']:,} collectives, {used['bytes']:,} bytes, "
        f"{used['share']:.1%} of all"
        for path, used in result["paths"].items()
    ]
    lines += [f"not accelerated, {why}: {count:,}" for why, count in result["reasons"].items()]
    return "\n".join(lines) if lines else "no collective yet"


def speed_against_ring(size: int, switch_ports: int) -> float:
    """Expected speed over a ring's, with `switch_ports` ports as fast as a worker's link.

    A ring moves 2(N-1)/N of the tensor over every link each way; through a switch it is once, but
    N workers share the switch's ports.
    """
    return min(1.0, switch_ports / size) * 2 * (size - 1) / size


def start_line(
    switches: Sequence[str], path: dict[str, int | str | bool], size: int, mode: Mode, gloo: str
) -> str:
    """What is in use and why, and what to expect of it."""
    added = "in rank order" if mode == Mode.FLOAT32 else "in fixed point, in any order"
    over = (
        f"through {named_switches(switches)} (NETFOLD_SWITCH)"
        if switches
        else "over a shard on each worker (NETFOLD_SWITCH names no switch)"
    )
    return (
        f"all_reduce of dense tensors goes {over}, {size} workers, mode {mode.name.lower()} "
        f"(added {added}), chunks of {path['payload_bytes']} bytes, window {path['window']}; "
        f"everything else through gloo on {gloo}. Expected speed: {_expectation(switches, size)}"
    )


def named_switches(switches: Sequence[str]) -> str:
    """ "the switch at a:1" or "2 switches at a:1, b:1"."""
    if len(switches) == 1:
        return f"the switch at {switches[0]}"
    return f"{len(switches)} switches at {', '.join(switches)}"


def _expectation(switches: Sequence[str], size: int) -> str:
    if not switches:
        return f"a ring's, whose bytes it moves, in 2 steps instead of {2 * (size - 1)}"
    one_port = speed_against_ring(size, len(switches))
    each = "each switch" if len(switches) > 1 else "the switch"
    return (
        f"{speed_against_ring(size, size):.2f} x a ring's if {each} has a port for each worker, "
        f"{one_port:.2f} x with one port for all (assuming ports as fast as the workers' links)"
    )
